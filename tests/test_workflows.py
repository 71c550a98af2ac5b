"""What commands do, called from Python: data and an exit code come back, and nothing is printed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiler.core.case import Case
from profiler.core.record import Record
from profiler.request.spec import Request
from profiler.runs import store
from profiler.workflows import Screen, Show
from profiler.workflows.run import RunRequest, run

pytestmark = pytest.mark.usefixtures("here", "shared")
WORDS = Request(model="mlp", strategies="all", device="fake:cpu")


class Noted(Screen):
    """What it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[tuple[str, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        def show(record: Record, left: int, log: Path) -> None:
            self.shown.append((str(record.case.strategy), left))

        yield show


def test_a_run_tells_its_progress_and_returns_what_it_stored(here, capfd):
    screen = Noted()

    ran = run(RunRequest(words=WORDS, output=here / "run", typed=("run", "--model", "mlp")), screen)

    assert ran.exit_code == 0
    assert ran.run.records == store.load(here / "run").records
    assert ran.run.manifest.command == "gcprof run --model mlp"
    assert screen.shown == [("none", 1), ("all", 0)]
    assert screen.said[0].startswith("predicting for cpu")
    assert capfd.readouterr() == ("", "")
