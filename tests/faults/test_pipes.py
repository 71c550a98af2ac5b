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
STREAMS = {"unread": 141, "full": 74}  # what it is -> how the program ends


@pytest.fixture
def results(here: Path) -> Path:
    return examples.run(here / "results" / "run", examples.sweep((2, 4))).folder


def ended(words: list[str], stream: str, *, code: str = MAIN, name: str = "stdout") -> subprocess.CompletedProcess[str]:
    """The real program with such a stdout or stderr."""
    python = [sys.executable, "-c", code, *words]
    with failing(stream) as nowhere:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, name: nowhere}
        buffered = environment(PYTHONUNBUFFERED="")  # as users have it: what fails then fails at the end
        return subprocess.run(python, env=buffered, **streams, text=True, check=False)


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
