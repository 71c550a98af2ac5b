"""Device memory that is not back after a child was killed, or that the host must lend: by fakes and one real child."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines import local
from profiler.engines.child import Ended, lost
from profiler.engines.local import SLACK_BYTES, Local, still_held
from tests import make
from tests.gpu_records import notes, on_a_gpu, record
from tests.make import MIB

# --- 49: device memory that does not come back


class Clock:
    """Time that passes only where somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("free", "held", "seconds"),
    [
        ([1000 * MIB], 0, 0.0),
        ([1000 * MIB - SLACK_BYTES], 0, 0.0),  # what wanders without anybody's doing
        ([100 * MIB, 100 * MIB, 1200 * MIB], 0, 1.0),
        ([100 * MIB] * 99, 900 * MIB, 30.0),
    ],
)
def test_fault_49_memory_is_waited_for_thirty_seconds_at_most(free, held, seconds):
    clock, answers = Clock(), iter(free)

    assert still_held(lambda: next(answers), before=1000 * MIB, clock=clock, sleep=clock.sleep) == held

    assert clock.now == seconds


def after_a_kill(
    monkeypatch: pytest.MonkeyPatch, *, free: int, status: int = -9, device: str = "cuda:0"
) -> list[Record]:
    """Two trials, each of which ends so, on a device that has so much free from then on."""
    clock, engine = Clock(), Local()
    answered = {
        "profiler.engines.tracing:survey": {"devices": {}, "free": {"cpu": None, "cuda:0": 1000 * MIB}},
        "profiler.engines.tracing:free_bytes": {"free": free},
    }
    monkeypatch.setattr(local, "still_held", partial(still_held, clock=clock, sleep=clock.sleep))
    monkeypatch.setattr(Local, "ask", lambda self, entry, text, failing, **how: answered[entry])
    child = SimpleNamespace(record=lambda trial, ended: lost(trial, "crashed", ended.describe()))
    child.wait = lambda limit, until_result=False: Ended(status=status, stage="memory")
    monkeypatch.setattr(Local, "_child", lambda self, entry, text, log, **how: nullcontext(child))
    engine.survey()
    found = []
    for one in engine.run([Trial(case=make.case(device=device))] * 2):
        found.append(one)
        if len(found) == 1:
            assert one.outcome in ("crashed", "failed")
    return found


def test_fault_49_a_device_that_still_holds_memory_ends_the_run_with_3(monkeypatch):
    with pytest.raises(UserError, match=r"cuda:0 still holds 900 MiB, 30 s after") as stopped:
        after_a_kill(monkeypatch, free=100 * MIB)

    assert stopped.value.exit_code == 3
    assert "--resume" in stopped.value.hint


@pytest.mark.parametrize("more", [{"free": 1000 * MIB}, {"free": 0, "status": 0}, {"free": 0, "device": "cpu"}])
def test_fault_49_memory_that_is_back_and_a_child_that_ended_by_itself_stop_nothing(monkeypatch, more):
    assert len(after_a_kill(monkeypatch, **more)) == 2


def test_fault_49_a_real_child_tells_what_is_free(engine):
    told = engine.ask("profiler.engines.tracing:survey", "", failing="no survey")

    assert told["free"].keys() == told["devices"].keys()
    assert told["free"]["cpu"] is None  # of the host's memory nobody waits for any
    assert engine.ask("profiler.engines.tracing:free_bytes", "cpu", failing="no answer") == {"free": None}


# --- 64: GPU memory spilled to the host


def held(nbytes: int, *, total: int = 8192 * MIB, device: str = "cuda:0") -> dict[str, str]:
    """The notes of a row that reserved so much of a device."""
    return notes(on_a_gpu(record(reserved_bytes=nbytes), total=total, device=device))


def test_fault_64_more_than_the_device_has_is_said_to_be_spilled():
    found = held(9216 * MIB)

    assert found["GCP032"].startswith("spill suspected: 9.00 GiB on a device of 8.00 GiB")
    assert "GCP032" not in held(8192 * MIB)
    assert "GCP032" not in held(9216 * MIB, device="cpu")  # the host swaps
