"""However a run ends, what it printed is stored, nothing of it lives on, and it goes on where it was."""

import random
import resource
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.analysis import progress
from profiler.analysis.rows import latest, rows
from profiler.cli import answer
from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.engines import local
from profiler.engines.child import Server
from profiler.engines.local import Local, in_waves
from profiler.runs import runs, store
from profiler.workflows import run as workflow
from tests import examples, kill, make, program
from tests.gpu_records import WELL, record
from tests.program import PATIENCE_SECONDS, Started, next_words, row_names

SWEEP = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "4", "--samples", "1")
WHOLE = Counter([*product(("none", "segments:k=1", "segments:k=2"), (1, 2, 3, 4)), ("segments:k=8", 1)])
SHORT = ("--strategies", "none,all", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")


def stored(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((str(record.case.strategy), record.round) for record in store.load(folder).records)


# --- signals, and kill -9 of the whole run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)]
)
def test_fault_31_an_interrupted_run_keeps_what_it_has_and_can_be_resumed(number, code, here, shared, tag, capsys):
    with Started("run", *SWEEP, "-o", "run", cwd=here, tag=tag) as run:
        run.wait_for("[ 1/16] mlp none round 1: ok")
        run.send(number)
        done = run.end()

    some = stored(here / "run")
    assert done.returncode == code
    assert "none" in row_names(done.stdout)
    assert {(strategy, number) for _, strategy, number in program.printed(done.stderr)} <= some.keys()
    assert some < WHOLE
    assert program.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert next_words(done.stderr) == ["run", "--resume", "run"]

    assert answer(next_words(done.stderr)) == 0
    assert stored(here / "run") == WHOLE


@pytest.mark.nightly
def test_fault_34_a_killed_run_loses_nothing_that_it_printed_and_leaves_nothing_behind(here, shared):
    assert answer(["run", *SWEEP, "-o", "peer"]) == 0
    moments = random.Random(20261120)
    folder = here / "run"

    for quarter in range(4):  # start-up, and trials
        after = moments.uniform(1.8 * quarter, 1.8 * (quarter + 1))
        assert kill.kill(folder, SWEEP, after=after, patience=PATIENCE_SECONDS) == []

    assert kill.finish(folder, SWEEP, store.load(here / "peer")) == []
    assert stored(folder) == WHOLE


# --- kill -9 of a trial or of its server: it costs the trial at work alone, which is measured again


@pytest.mark.slow
def test_fault_34_a_killed_server_costs_the_trial_at_work_alone(monkeypatch):
    """The second of three trials kills the server; the system tells its death late."""
    monkeypatch.setattr(local, "PRELOAD", ())
    monkeypatch.setattr(Server, "alive", lambda self: self.process.returncode is None)
    trials = [Trial(case=make.case(name)) for name in ("recursive", "all", "sqrt")]

    with Local(entry="tests.faults.trials:end") as engine:
        outcomes = [record.outcome for record in engine.run(trials)]

    assert outcomes == ["failed", "crashed", "failed"]


class Scripted:
    """An engine whose trials end as they are told to, and then are ok; it keeps what it was asked."""

    logs = None

    def __init__(self, **ends: str) -> None:
        self.ends = ends
        self.asked: list[tuple[str, int, bool]] = []  # strategy, round, whether there was something to compare with

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        return in_waves(self._wave, plan, done)

    def _wave(self, trials: Any) -> Iterator[Record]:
        compared = msgspec.structs.replace(make.record().equality, digests={"loss": "3f"})
        for trial in trials:
            name = str(trial.case.strategy)
            self.asked.append((name, trial.round, bool(trial.digests)))
            outcome = self.ends.pop(name, "ok") if trial.round == 1 else "ok"
            equality = compared if outcome == "ok" else None
            yield make.record(name, case=trial.case, round=trial.round, outcome=outcome, equality=equality)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A run of three strategies in two rounds, of which nothing is done."""
    trials = tuple(Trial(case=make.case(name), round=number) for number in (1, 2) for name in ("none", "all", "sqrt"))
    return examples.run(tmp_path / "run", [], more=trials).folder


def test_records_that_are_ready_come_first_and_are_measured_no_more(planned):
    ready = list(Scripted().run([Trial(case=make.case(name)) for name in ("none", "all")]))
    engine = Scripted()

    found = list(workflow.run_owed(engine, store.load(planned), ready=ready))

    assert [record for record, _ in found[:2]] == ready
    assert [left for _, left in found] == [5, 4, 3, 2, 1, 0]
    assert engine.asked == [("sqrt", 1, True), ("none", 2, True), ("all", 2, True), ("sqrt", 2, True)]


@pytest.mark.parametrize("outcome", ["crashed", "timed_out"])
def test_fault_34_a_trial_that_was_ended_from_outside_is_measured_again(planned, outcome):
    assert [left for _, left in workflow.run_owed(Scripted(all=outcome), store.load(planned))][-1] == 0

    engine = Scripted()
    assert [left for _, left in workflow.run_owed(engine, store.load(planned))] == [1, 0]

    assert engine.asked == [("all", 1, True), ("all", 2, True)]
    run = store.load(planned)
    assert progress.exit_code(run.records) == 0
    assert {row.outcome for row in rows(run.records)} == {"ok"}
    assert progress.settled(run.records) == latest(run.records)


@pytest.mark.slow
def test_fault_36_a_disk_that_fills_during_the_run_stops_it_and_keeps_what_is_safe(here, shared, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))  # one record, and some of the next
    try:
        code = answer(["run", "--model", "mlp", *SHORT, "-o", "run"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    out, err = capsys.readouterr()
    assert code == 74
    assert err.splitlines()[-1] == "next: gcprof run --resume run"
    assert row_names(out) == ["none"]
    assert stored(here / "run") == {("none", 1): 1}

    assert answer(["run", "--resume", "run"]) == 0
    assert stored(here / "run") == {("none", 1): 1, ("all", 1): 1}


@pytest.mark.slow
def test_fault_61_another_environment_is_listed_and_measured_in_a_folder_of_its_own(here, shared, capsys):
    """Of two trials one is done, as if in an environment with another torch."""
    others = {"gcprof": "0.0.9", "python": "3.10.1", "torch": "1.13.1", "device_name": "an abacus", "num_threads": 77}
    assert answer(["run", "--model", "mlp", *SHORT, "-o", "run"]) == 0
    lines, manifest = here / "run" / "trials.jsonl", here / "run" / "manifest.json"
    lines.write_bytes(lines.read_bytes().splitlines(keepends=True)[0])
    document = msgspec.json.decode(manifest.read_bytes())
    document["environment"].update(others)
    manifest.write_bytes(msgspec.json.encode(document))
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}

    assert answer(["run", "--resume", "run"]) == 2

    err = capsys.readouterr().err
    assert [name for name in others if f"{name} {others[name]} -> " not in err] == []
    assert answer(["run", "--resume", "run", "--new-run"]) == 0
    assert {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()} == before
    (folder,) = runs(here / "results")
    old, new = store.load(here / "run"), store.load(folder)
    assert (new.manifest.plan, new.manifest.command) == (old.manifest.plan, old.manifest.command)
    assert new.manifest.words == old.manifest.words
    assert stored(folder) == {("none", 1): 1, ("all", 1): 1}


def test_fault_48_where_the_device_must_be_exclusive_the_run_ends_with_3_and_keeps_what_there_is(
    here, monkeypatch, capsys
):
    others = msgspec.structs.replace(WELL, num_others=1, others_bytes=3 * 2**30)

    def run(self: Local, trials: Sequence[Trial], done: Any = ()) -> Iterator[Record]:
        for trial in trials:
            yield msgspec.structs.replace(record(conditions=(WELL, others)), case=trial.case, round=trial.round)

    monkeypatch.setattr(Local, "__enter__", lambda self: self)
    monkeypatch.setattr(Local, "survey", lambda self: {"cpu": record().environment})
    monkeypatch.setattr(Local, "run", run)
    words = "run --model mlp --segments 2 --device cpu --rounds 1 -o run --exclusive error"

    assert answer(words.split()) == 3

    assert "the device is shared with 1 other process that holds 3.00 GiB" in capsys.readouterr().err
    assert len(store.load(here / "run").records) == 1
