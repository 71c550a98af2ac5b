"""Two runs that mean the same folder, and locks that do not work: nothing is done twice or lost."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines.local import in_waves
from profiler.runs import store
from profiler.runs.store import Writer
from profiler.workflows import run as workflow
from tests import examples, make


def records(folder: Path) -> list[tuple[str, int]]:
    return [(str(record.case.strategy), record.round) for record in store.load(folder).records]


class Idle:
    """An engine that measures nothing, and lets others have their turn."""

    logs = None

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        def one(trial: Trial) -> Record:
            return make.record(str(trial.case.strategy), case=trial.case, round=trial.round)

        return in_waves(lambda trials: map(one, trials), plan, done)


@pytest.fixture
def owed(tmp_path: Path) -> Path:
    """A folder that owes three trials."""
    trials = tuple(Trial(case=make.case(name)) for name in ("none", "all", "sqrt"))
    return examples.run(tmp_path / "run", [], more=trials).folder


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a writer would have slept while it waited for another."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_fault_39_a_second_writer_gets_in_when_the_first_ends(owed: Path, monkeypatch: pytest.MonkeyPatch):
    first = Writer(owed)
    monkeypatch.setattr(time, "sleep", lambda seconds: first.close())

    second = Writer(owed)
    second.append(make.record())
    second.close()

    assert second.is_locked
    assert records(owed) == [("none", 1)]


def both(folder: Path) -> list[tuple[str, int]]:
    """What is stored by two runs in one folder, in turns."""
    first, second = (workflow.run_owed(Idle(), store.load(folder)) for _ in range(2))
    next(first)
    next(second)
    for one in (first, second):
        for _ in one:
            continue
    return records(folder)


def test_fault_39_two_runs_in_one_folder_do_nothing_twice(owed: Path, pauses: list[float]):
    with pytest.raises(UserError, match="another gcprof is writing"):
        both(owed)

    assert records(owed) == [("none", 1)]


# 40: locks that do not work


def refusing(number: int) -> Any:
    """A lock on a file system that has none."""

    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


LOCKS = [refusing(errno.ENOLCK), refusing(errno.EOPNOTSUPP)]


@pytest.fixture(params=LOCKS, ids=["ENOLCK", "EOPNOTSUPP"])
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", request.param)
