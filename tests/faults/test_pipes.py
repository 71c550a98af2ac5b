"""Streams that nobody reads, that are closed, or that take nothing (row 54): knows nothing of what is printed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.runs import store
from tests import examples
from tests.program import environment

MAIN = "import sys; from profiler.cli import main; main(sys.argv[1:])"
QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
COMMANDS = [
    ["show"],
    ["show", "--json"],
    ["list"],
    ["export", "--to", "csv"],
    ["run", "--resume", "last"],  # nothing is left to do, and the table is printed
    ["--help"],
]
STREAMS = {"closed": 141, "unread": 141, "full": 74}  # what it is -> how the program ends


@pytest.fixture
def results(here: Path) -> Path:
    return examples.run(here / "results" / "run", examples.sweep((2, 4))).folder


def ended(words: list[str], stream: str, *, code: str = MAIN, name: str = "stdout") -> subprocess.CompletedProcess[str]:
    """The real program with such a stdout or stderr."""
    python = [sys.executable, "-c", code, *words]
    closing = ["sh", "-c", f'exec "$@" {1 if name == "stdout" else 2}>&-', "sh"] if stream == "closed" else []
    with failing(stream) as nowhere:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, name: nowhere}
        buffered = environment(PYTHONUNBUFFERED="")  # as users have it: what fails then fails at the end
        return subprocess.run([*closing, *python], env=buffered, **streams, text=True, check=False)


def failing(kind: str) -> Any:
    """A file that fails when it is written to; it is open for as long as it is needed."""
    if kind != "unread":
        return open("/dev/full", "wb", buffering=0)
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "wb", buffering=0)


@pytest.mark.nightly
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_fault_54_a_stdout_that_takes_nothing_is_no_traceback(words: list[str], stream: str, results: Path):
    done = ended(words, stream)

    assert done.returncode == STREAMS[stream]
    assert [word for word in ("Traceback", "Exception", "internal error", "NoneType") if word in done.stderr] == []
    assert ("gcprof: cannot write: No space left on device" in done.stderr) == (stream == "full")


@pytest.mark.parametrize(("stream", "code"), [("closed", 0), ("unread", 141), ("full", 74)])
def test_fault_54_a_stderr_that_takes_nothing_is_no_traceback_either(stream: str, code: int, results: Path):
    done = ended(["show"], stream, name="stderr")

    assert done.returncode == code
    assert "segments:k=4" in done.stdout  # the result was there before


@pytest.mark.parametrize("stream", STREAMS)
def test_fault_54_a_complaint_that_nobody_hears_keeps_its_exit_code(stream: str, results: Path):
    assert ended(["show", "nowhere"], stream, name="stderr").returncode == 4


@pytest.mark.nightly
def test_fault_54_a_program_without_any_stream_measures_all_the_same(here: Path):
    words = ["run", "--model", "mlp", "--strategies", "none", *QUICK, "-o", "run"]
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "profiler", *words]

    done = subprocess.run(command, env=environment(), check=False)

    assert done.returncode == 141
    assert [record.outcome for record in store.load(here / "run").records] == ["ok"]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", ["unread", "full"])
def test_fault_54_what_a_run_has_measured_is_kept(
    kind: str, name: str, here: Path, shared: None, monkeypatch: pytest.MonkeyPatch
):
    stream = io.TextIOWrapper(io.BufferedWriter(failing(kind)), line_buffering=True)
    monkeypatch.setattr(sys, name, stream)

    code = answer(["run", "--model", "mlp", "--segments", "2", *QUICK, "-o", "run"])

    stream.close()  # what was left in it went nowhere by now
    assert code == STREAMS[kind]
    whole = 2 if name == "stdout" else 0  # its first word could not be told, and it ended before the first trial
    assert [record.outcome for record in store.load(here / "run").records] == ["ok"] * whole


def test_twin_54_a_stream_that_is_not_let_go_fails_again_at_the_end(results: Path):
    code = f"import profiler.cli; profiler.cli.drop_unwritable = lambda: None; {MAIN}"

    done = ended(["show"], "unread", code=code)

    assert done.returncode == 120  # Python's own, for a stdout that cannot be flushed
    assert "BrokenPipeError" in done.stderr


def test_twin_54_a_closed_stdout_that_is_not_replaced_is_none_at_all(results: Path):
    code = f"import profiler.cli; profiler.cli.open_standard = lambda: None; {MAIN}"

    done = ended(["show"], "closed", code=code)

    assert done.returncode == 70
    assert "'NoneType' object has no attribute" in done.stderr


def test_fault_54_a_stream_that_takes_everything_is_written_to(results: Path):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "show"], env=environment(), capture_output=True, text=True, check=False
    )

    assert (done.returncode, "segments:k=4" in done.stdout) == (0, True)
