"""The server that a command begins with: what is taken, what is dropped, and where there is none."""

import pytest

from profiler.core import server_process
from profiler.core.server_process import PRELOAD_TO_REHEARSE, PRELOAD_TO_TRACE, start_early, take


class Started:
    """Stands for a process that was started."""

    def __init__(self, preload, *, rehearses: bool = False) -> None:
        self.preload, self.rehearses, self.is_dropped = preload, rehearses, False

    def drop(self) -> None:
        self.is_dropped = True


@pytest.fixture(autouse=True)
def started(monkeypatch) -> list[Started]:
    made: list[Started] = []
    monkeypatch.setattr(server_process, "_early", [])
    monkeypatch.setattr(server_process, "start", lambda *given, **how: made.append(Started(*given, **how)) or made[-1])
    monkeypatch.delenv("GCPROF_HOLLOW", raising=False)
    return made


@pytest.mark.slow
def test_a_command_that_will_need_torch_has_its_server_before_its_words_are_read(started):
    start_early(["predict", "mlp", "--device", "cpu"])

    (early,) = started
    assert early.preload == PRELOAD_TO_TRACE
    assert take(PRELOAD_TO_TRACE) is early
    assert take(PRELOAD_TO_TRACE) is None  # it was taken
    assert not early.is_dropped


@pytest.mark.parametrize(
    "words", [["rehearse", "mlp"], ["run", "--device", "rehearse:t4"], ["plan", "mlp", "--device", "t4"]]
)
def test_one_that_rehearses_has_the_hollow_device_from_its_beginning(started, words):
    start_early(words)

    (early,) = started
    assert early.rehearses
    assert take(PRELOAD_TO_REHEARSE) is early


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run", "--dry-run"],
        ["run", "--engine=slurm"],
        ["rehearse", "--device", "t4", "--", "python", "train.py"],
        ["plan", "--stages", "stages.json"],
    ],
)
def test_others_begin_without_one(started, words):
    start_early(words)

    assert started == []
