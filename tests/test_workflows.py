"""What commands do, called from Python: data and an exit code come back, and nothing is printed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiler.core.case import Case
from profiler.core.record import Record
from profiler.request.spec import Request
from profiler.runs import store
from profiler.workflows import Interrupted, Screen, Show
from profiler.workflows.planner import GATE, PlanRequest, plan
from profiler.workflows.resume import resume
from profiler.workflows.run import RunRequest, run

pytestmark = pytest.mark.usefixtures("here", "shared")
WORDS = Request(model="mlp", strategies="all", device="fake:cpu")


class Noted(Screen):
    """What it is told; after so many records a signal comes."""

    def __init__(self, *, until: int | None = None) -> None:
        self.said: list[str] = []
        self.shown: list[tuple[str, int]] = []
        self._until = until

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        def show(record: Record, left: int, log: Path) -> None:
            self.shown.append((str(record.case.strategy), left))
            if len(self.shown) == self._until:
                raise Interrupted(2)

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


def test_an_interrupted_run_keeps_what_it_stored_and_goes_on(here, capfd):
    screen, again = Noted(until=1), Noted()

    ended = run(RunRequest(words=WORDS, output=here / "run"), screen)
    whole = resume(RunRequest(words=Request(), resume="run"), again)

    assert (ended.exit_code, len(ended.run.records)) == (130, 1)
    assert screen.said[-1] == "interrupted; what was printed is safe"
    assert (whole.exit_code, len(whole.run.records)) == (0, 2)
    assert again.shown == [("all", 0)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "code"), [("max", 0), ("1KiB", GATE)])
def test_a_plan_that_fits_is_returned_beside_its_rivals(budget, code, capfd):
    words = Request(model="mlp", strategies="none", device="fake:t4")

    planned = plan(PlanRequest(words=words, budget=budget))

    assert planned.exit_code == code
    assert (planned.fitted is not None) == (planned.comparison is not None) == (code == 0)
    assert capfd.readouterr() == ("", "")
