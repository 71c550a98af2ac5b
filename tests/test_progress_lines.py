"""Lines while a run goes on: what went wrong brings the last that its trial printed."""

import io
import re
import signal
import sys
from threading import Event

import pytest
from rich.console import Console

from profiler.analysis import progress
from profiler.cli import answer, output
from profiler.engines.local import Local
from profiler.views.tables.progress import Follow
from tests import examples, golden_files, make
from tests.program import PATIENCE_SECONDS


def test_of_every_failure_the_last_words_are_told(tmp_path):
    (tmp_path / "trial.log").write_text("warning: a loss of integers\n")
    file = io.StringIO()

    for outcome in progress.FAILURES:
        Follow(file).show(make.failed("all", outcome, "why"), 0, tmp_path / "trial.log")

    assert file.getvalue().count("a loss of integers") == len(progress.FAILURES) > 0


def drawn(follow: Follow) -> str:
    """What the terminal shows, without what turns."""
    with follow._console.capture() as captured:
        follow._console.print(follow.screen())
    return re.sub(r"(?m)^[-\\|/] ", "", captured.get()).replace("\x1b[?25l", "")


def test_a_terminal_shows_the_table_as_far_as_it_has_come():
    clock, records = [0.0], examples.sweep((1, 2))
    cases = [record.case for record in (*records, *records)]
    follow = Follow(io.StringIO(), cases, clock=lambda: clock[-1])  # seconds
    follow._console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True, color_system=None)
    shown = [drawn(follow)]
    clock.append(11.0)
    assert follow.line() == "0/6  0:00:11"  # longer than the guess, which is not shown any more

    for seconds, record in zip((8.0, 20.0, 30.0), records, strict=True):
        clock.append(seconds)
        follow.show(record, left=6 - follow._num_ended - 1)
        follow.at_work("mnist-cnn segments:k=4 round 1: memory")
        shown.append(drawn(follow))

    lines = [line.rstrip() for line in "\n".join(shown).splitlines()]
    golden_files.compare("live-80.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "words", ["run mlp", "plan mlp --budget 60% --device cpu", "fit mlp --memory 1GiB --device cpu", "timeline mlp"]
)
def test_an_interrupt_while_torch_is_being_imported_is_told(words, here, monkeypatch, capsys):
    monkeypatch.setattr(Local, "__enter__", lambda self: signal.raise_signal(signal.SIGINT))

    assert answer(words.split()) == 130

    assert capsys.readouterr().err.splitlines()[-1].removeprefix("gcprof: ").startswith("interrupted; ")
    assert [path for path in here.rglob("*") if path.is_file()] == []


def test_where_nobody_watches_long_work_says_that_it_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(output, "SIGN_SECONDS", 0.01)
    told = Event()
    monkeypatch.setattr(output, "aside", lambda text: (print(text, file=sys.stderr), told.set()))

    terminal = output.Terminal()
    with terminal.doing("measuring each stage"):
        assert told.wait(PATIENCE_SECONDS)
        terminal.at_work("step 3 of 14, 4 s left")
        for _ in range(2):  # the first may have been on its way
            told.clear()
            assert told.wait(PATIENCE_SECONDS)

    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "measuring each stage: 0 s so far"
    assert last.startswith("measuring each stage: step 3 of 14, 4 s left; 0 s so far")
