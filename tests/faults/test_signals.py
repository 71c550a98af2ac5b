"""However a run ends, what it printed is stored and nothing of it lives on; real processes throughout."""

from __future__ import annotations

import json
import os
import select
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core.record import Record
from profiler.runs import store
from profiler.workflows import run as workflow
from tests import killed, make
from tests.program import PATIENCE_SECONDS, Started, next_words

SWEEP = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "4", "--samples", "1")
STUCK = ("--model", "mlp,tests.faulty:build:kind=hang", "--strategies", "none", "--device", "cpu", "--rounds", "1")
WHOLE = Counter([*product(("none", "segments:k=1", "segments:k=2"), (1, 2, 3, 4)), ("segments:k=8", 1)])
FIRST = "[ 1/16] mlp none round 1: ok"


def stored(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((str(record.case.strategy), record.round) for record in store.load(folder).records)


@pytest.mark.slow
def test_fault_31_an_interrupted_run_keeps_what_it_has_and_can_be_resumed(
    here: Path, shared: None, tag: str, capsys: Any
):
    with Started("run", *SWEEP, "-o", "run", cwd=here, tag=tag) as run:
        run.wait_for(FIRST)
        run.send(signal.SIGINT)
        done = run.end()

    told = killed.printed(done.stderr)
    some = stored(here / "run")
    assert done.returncode == 130
    assert "interrupted; what was printed is safe" in done.stderr.splitlines()
    assert "none" in {line.split(" ")[0] for line in done.stdout.splitlines()}
    assert {(strategy, number) for _, strategy, number in told} <= some.keys()
    assert some < WHOLE
    assert killed.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert next_words(done.stderr) == ["run", "--resume", "run"]

    assert answer(next_words(done.stderr)) == 0
    assert stored(here / "run") == WHOLE


def interrupted(here: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a run in this process that Ctrl-C ends in its first trial."""

    def interrupt(*words: Any, **more: Any) -> Iterator[tuple[Record, int]]:
        os.kill(os.getpid(), signal.SIGINT)
        yield make.record(), 0

    monkeypatch.setattr(workflow, "run_owed", interrupt)
    return answer(["run", *STUCK, "-o", "run"])


@pytest.mark.nightly
def test_fault_33_a_run_that_is_asked_to_end_ends_its_child_and_says_143(here: Path, tag: str):
    with Started("run", *STUCK, "-o", "run", "--json", cwd=here, tag=tag) as run:
        run.wait_for("[1/2] mlp none round 1: ok")  # the other one hangs for an hour
        alive = len(killed.tagged(tag))
        run.send(signal.SIGTERM)
        done = run.end()

    document = json.loads(done.stdout)
    assert alive >= 2  # the program and its server
    assert done.returncode == 143
    assert (document["status"], document["exit_code"], len(document["records"])) == ("partial", 143, 1)
    assert killed.survivors(tag, patience=PATIENCE_SECONDS) == []


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no more: who writes to it waits until somebody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b" " * select.PIPE_BUF)
        except BlockingIOError:
            os.set_blocking(writing, True)
            return reading, writing


@pytest.mark.slow
def test_fault_32_a_second_interrupt_ends_at_once(here: Path, tag: str):
    reading, writing = full_pipe()

    with Started("run", *STUCK, "-o", "run", cwd=here, tag=tag, stdout=writing) as run:
        run.wait_for("[1/2]")
        run.send(signal.SIGINT)
        run.wait_for("interrupted; what was printed is safe")  # now it wants to print its table, and cannot
        alive = len(killed.tagged(tag))
        run.send(signal.SIGINT)
        done = run.end()

    os.close(reading)
    os.close(writing)
    assert alive >= 1
    assert done.returncode == -signal.SIGINT
    assert "next: " not in done.stderr
    assert killed.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert stored(here / "run") == {("none", 1): 1}
