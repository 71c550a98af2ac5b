"""Device memory that is not back after a child was killed, or that the host must lend: by fakes and one real child."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines import local
from profiler.engines.child import Ended
from profiler.engines.local import SLACK_BYTES, Local
from tests import make
from tests.gpu_records import notes, on_a_gpu, record
from tests.make import MIB

# --- 49: device memory that does not come back


class Device:
    """Frees what a killed process held `after` seconds, which pass only where somebody sleeps."""

    def __init__(self, *, held: int, after: float) -> None:
        self.now, self._held, self._after = 0.0, held, after

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def answer(self, engine: Local, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        if entry.endswith(":survey"):
            return {"devices": {}, "free": {"cpu": None, "cuda:0": 1000 * MIB}}
        return {"free": 1000 * MIB - (self._held if self.now < self._after else 0)}


def after_a_kill(
    monkeypatch: pytest.MonkeyPatch, fake: Device, *, status: int = -9, device: str = "cuda:0"
) -> list[Record]:
    """Two trials, each of which ends so."""
    engine = Local()
    monkeypatch.setattr(local, "time", fake)
    monkeypatch.setattr(Local, "ask", lambda self, *words, **more: fake.answer(self, *words, **more))
    child = SimpleNamespace(lines=[], torn=b"")
    child.wait = lambda limit, until_result=False: Ended(status=status, stage="memory")
    monkeypatch.setattr(Local, "_child", lambda self, entry, text, log, **how: nullcontext(child))
    engine.survey()
    return list(engine.run([Trial(case=make.case(device=device))] * 2))


def test_fault_49_a_device_that_still_holds_memory_ends_the_run_with_3(monkeypatch):
    with pytest.raises(UserError, match=r"cuda:0 still holds 900 MiB, 30 s after") as stopped:
        after_a_kill(monkeypatch, Device(held=900 * MIB, after=31.0))

    assert stopped.value.exit_code == 3
    assert "--resume" in stopped.value.hint


@pytest.mark.parametrize(
    ("held", "ending", "seconds"),
    [
        (900 * MIB, {}, 2.0),
        (SLACK_BYTES, {}, 0.0),  # what wanders without anybody's doing
        (900 * MIB, {"status": 0}, 0.0),
        (900 * MIB, {"device": "cpu"}, 0.0),
    ],
)
def test_fault_49_memory_is_waited_for_where_a_child_was_killed(monkeypatch, held, ending, seconds):
    fake = Device(held=held, after=2.0)

    assert (len(after_a_kill(monkeypatch, fake, **ending)), fake.now) == (2, seconds)


def test_fault_49_a_real_child_tells_what_is_free(engine):
    told = engine.ask("profiler.engines.worker:survey", "", failing="no survey")

    assert told["free"].keys() == told["devices"].keys()
    assert told["free"]["cpu"] is None  # of the host's memory nobody waits for any
    assert engine.ask("profiler.engines.worker:free_bytes", "cpu", failing="no answer") == {"free": None}


# --- 64: GPU memory spilled to the host


def held(nbytes: int, *, total: int = 8192 * MIB, device: str = "cuda:0") -> dict[str, str]:
    """The notes of a row that reserved so much of a device."""
    return notes(on_a_gpu(record(reserved_bytes=nbytes), total=total, device=device))


def test_fault_64_more_than_the_device_has_is_said_to_be_spilled():
    found = held(9216 * MIB)

    assert found["GCP032"].startswith("spill suspected: 9.00 GiB on a device of 8.00 GiB")
    assert "GCP032" not in held(8192 * MIB)
    assert "GCP032" not in held(9216 * MIB, device="cpu")  # the host swaps
