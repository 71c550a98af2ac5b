"""Device memory that is not back after a child was killed, or that the host must lend: by fakes and one real child."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.engines import local
from profiler.engines.child import Ended
from profiler.engines.local import SLACK_BYTES, Local
from tests import make
from tests.gpu_records import notes, record
from tests.make import MIB


def after_a_kill(
    monkeypatch: pytest.MonkeyPatch, *, held: int, after: float, status: int = -9, device: str = "cuda:0"
) -> tuple[int, float]:
    """Two trials end so, and what they held is freed after some seconds, which pass where somebody sleeps alone."""
    now = [0.0]

    def ask(self: Local, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        if entry.endswith(":survey"):
            return {"devices": {}, "free": {"cpu": None, "cuda:0": 1000 * MIB}}
        return {"free": 1000 * MIB - (held if sum(now) < after else 0)}

    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: sum(now), sleep=now.append))
    monkeypatch.setattr(Local, "ask", ask)
    child = SimpleNamespace(lines=[], torn=b"")
    child.wait = lambda limit, until_result=False: Ended(status=status, stage="memory")
    monkeypatch.setattr(Local, "_child", lambda self, entry, text, log, **how: nullcontext(child))
    engine = Local()
    engine.survey()
    return len(list(engine.run([Trial(case=make.case(device=device))] * 2))), sum(now)


def test_fault_49_a_device_that_still_holds_memory_ends_the_run_with_3(monkeypatch):
    with pytest.raises(UserError, match="900 MiB, 30 s", check=lambda e: e.exit_code == 3 and "--resume" in e.hint):
        after_a_kill(monkeypatch, held=900 * MIB, after=31.0)


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
    assert after_a_kill(monkeypatch, held=held, after=2.0, **ending) == (2, seconds)


def test_fault_64_more_than_the_device_has_is_said_to_be_spilled():
    environment = msgspec.structs.replace(make.record().environment, device_bytes=8192 * MIB)
    for held, device, is_spilled in ((9216, "cuda:0", True), (8192, "cuda:0", False), (9216, "cpu", False)):
        found = notes(record(reserved_bytes=held * MIB, device=device, environment=environment))
        assert ("GCP032" in found) == is_spilled  # on a CPU the host swaps
