"""kill -9 of a trial or of its server: it costs the trial at work alone, which `--resume` measures again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.analysis import progress
from profiler.analysis.rows import latest, rows
from profiler.core.case import Trial
from profiler.core.record import Equality, Record
from profiler.engines import local
from profiler.engines.child import Server
from profiler.engines.local import Local, in_waves
from profiler.runs import store
from profiler.workflows import run as workflow
from tests import examples, make


def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of three trials, the second of which kills the server; the system tells its death late."""
    monkeypatch.setattr(local, "PRELOAD", ())
    monkeypatch.setattr(Server, "alive", lambda self: self.process.returncode is None)
    trials = [Trial(case=make.case(name)) for name in ("recursive", "all", "sqrt")]
    with Local(entry="tests.faults.entries:end") as engine:
        return [record.outcome for record in engine.run(trials)]


@pytest.mark.slow
def test_fault_34_a_killed_server_costs_the_trial_at_work_alone(monkeypatch: pytest.MonkeyPatch):
    assert outcomes(monkeypatch) == ["failed", "crashed", "failed"]


class Scripted:
    """An engine whose trials end as they are told to, and then are ok; it keeps what it was asked."""

    logs = None

    def __init__(self, **ends: str) -> None:
        self.ends = ends
        self.asked: list[tuple[str, int, bool]] = []  # strategy, round, whether there was something to compare with

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        return in_waves(self._wave, plan, done)

    def _wave(self, trials: Any) -> Iterator[Record]:
        for trial in trials:
            name = str(trial.case.strategy)
            self.asked.append((name, trial.round, bool(trial.digests)))
            outcome = self.ends.pop(name, "ok") if trial.round == 1 else "ok"
            record = make.record(name, case=trial.case, round=trial.round, outcome=outcome)
            yield msgspec.structs.replace(record, equality=COMPARED) if outcome == "ok" else record


COMPARED = Equality(
    loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True, digests={"loss": "3f"}
)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A run of three strategies in two rounds."""
    trials = tuple(Trial(case=make.case(name), round=number) for number in (1, 2) for name in ("none", "all", "sqrt"))
    return examples.run(tmp_path / "run", [], more=trials).folder


def again(folder: Path, **ends: str) -> list[tuple[str, int, bool]]:
    """What is measured when a run goes on whose trials ended like this; and how many were said to be left."""
    left = [left for _, left in workflow.run_owed(Scripted(**ends), store.load(folder))]
    assert left[-1] == 0
    engine = Scripted()
    left = [left for _, left in workflow.run_owed(engine, store.load(folder))]
    assert left == list(range(len(left)))[::-1]
    return engine.asked


def test_records_that_are_ready_come_first_and_are_measured_no_more(planned: Path):
    ready = list(Scripted().run([Trial(case=make.case(name)) for name in ("none", "all")]))
    engine = Scripted()

    found = list(workflow.run_owed(engine, store.load(planned), ready=ready))

    assert [record for record, _ in found[:2]] == ready
    assert [left for _, left in found] == [5, 4, 3, 2, 1, 0]
    assert engine.asked == [("sqrt", 1, True), ("none", 2, True), ("all", 2, True), ("sqrt", 2, True)]
    assert list(store.load(planned).records) == [record for record, _ in found]


@pytest.mark.parametrize("outcome", ["crashed", "timed_out"])
def test_fault_34_a_trial_that_was_ended_from_outside_is_measured_again(planned: Path, outcome: str):
    assert again(planned, all=outcome) == [("all", 1, True), ("all", 2, True)]

    run = store.load(planned)
    assert progress.exit_code(run.records) == 0
    assert {row.outcome for row in rows(run.records)} == {"ok"}
    assert progress.settled(run.records) == latest(run.records)


def test_fault_34_what_could_not_be_compared_with_a_killed_baseline_is_measured_again(planned: Path):
    assert again(planned, none="crashed") == [
        ("none", 1, False), ("all", 1, True), ("sqrt", 1, True), ("none", 2, True),
    ]  # fmt: skip
