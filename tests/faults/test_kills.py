"""kill -9 of a run: nothing that was printed is lost, nothing lives on, and the run is completed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.runs import store
from profiler.runs.store import Writer
from tests import examples, kill, make
from tests.program import PATIENCE_SECONDS

SWEEP = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "4", "--samples", "1")
WHOLE = Counter([*product(("none", "segments:k=1", "segments:k=2"), (1, 2, 3, 4)), ("segments:k=8", 1)])


def stored(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((str(record.case.strategy), record.round) for record in store.load(folder).records)


@pytest.fixture
def peer(here: Path, shared: None, capsys: pytest.CaptureFixture[str]) -> store.Run:
    """The run that the killed one must equal in the end."""
    assert answer(["run", *SWEEP, "-o", "peer"]) == 0
    return store.load(here / "peer")


@pytest.mark.nightly
def test_fault_34_a_killed_run_loses_nothing_that_it_printed_and_leaves_nothing_behind(here: Path, peer: store.Run):
    moments = random.Random(20261120)
    folder = here / "run"

    for quarter in range(4):  # start-up, and trials
        found = kill.kill(
            folder, SWEEP, after=moments.uniform(1.8 * quarter, 1.8 * (quarter + 1)), patience=PATIENCE_SECONDS
        )
        assert found.wrong == []

    assert kill.finish(folder, SWEEP, peer) == []
    assert stored(folder) == WHOLE


# What lives on


# Files in the making


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.fixture
def littered(tmp_path: Path) -> Path:
    """A finished run beside which, and in which, processes died that were making files."""
    folder = examples.run(tmp_path / "run", [make.record("none"), make.record("all")]).folder
    for path in (folder / "derived" / "table.csv", folder / "derived" / "frontier.png", folder / "trials.jsonl"):
        safe_files.beside(path).write_text("half")
    return folder


def test_fault_34_what_a_killed_process_was_making_is_swept_away(littered: Path):
    Writer(littered).close()

    assert hidden(littered) == []
