"""A sweep in parts that know nothing of each other, and folders that become one run."""

import os
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.core.schedule import Shard
from profiler.engines.local import in_waves
from profiler.runs import store
from profiler.runs.merge import merge, write
from profiler.runs.store import Run
from profiler.workflows import run as workflow
from tests import examples, make


def sweep(*, models: int = 3, rounds: int = 3, predict: bool = False) -> tuple[Trial, ...]:
    pairs = product(range(models), ("none", "all", "segments:k=2", "segments:k=64"))
    cases = [make.case(strategy, model=Choice(f"mlp:depth={number}")) for number, strategy in pairs]
    return schedule.measured(cases, rounds, predict=predict)


def engine(outcome: str) -> Any:
    """One whose records are told by case and round alone; of `segments:k=64` each trial has this outcome."""

    def record_of(trial: Trial) -> Record:
        case, number = trial.case, int(trial.case.id, 16) % 97 + trial.round
        told: dict[str, Any] = {"case": case, "round": trial.round, "environment": examples.ENVIRONMENT}
        if case.strategy == "segments:k=64" and (outcome != "invalid" or trial.round == 1):
            return make.failed(case.strategy, outcome, "too many", **told)
        unread = ("peak_bytes", "phases", "static_bytes", "equality") if trial.round > 1 else ()
        return make.record(seconds=(number / 100, number / 99), **told, **dict.fromkeys(unread))

    return SimpleNamespace(
        logs=None, run=lambda plan, done=(): in_waves(lambda ready: map(record_of, ready), plan, done)
    )


def carried_out(folder: Path, plan: Sequence[Trial], outcome: str, **shard: Shard) -> Run:
    store.create(folder, plan=tuple(plan), command="gcprof run", environment=examples.ENVIRONMENT, sources={}, **shard)
    list(workflow.run_owed(engine(outcome), store.load(folder)))
    return store.load(folder)


def in_parts(folder: Path, plan: Sequence[Trial], count: int, outcome: str = "skipped") -> list[Path]:
    """The run folders of all parts that are not empty."""
    found = []
    for index in range(1, count + 1):
        part, shard = schedule.cut(plan, Shard(index=index, count=count))
        if part:
            carried_out(folder / f"part-{index}", part, outcome, shard=shard)
            found.append(folder / f"part-{index}")
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 12), models=st.integers(1, 4), rounds=st.integers(1, 4))
def test_every_trial_is_in_exactly_one_part_and_no_pairing_is_cut(count, models, rounds):
    plan = sweep(models=models, rounds=rounds)

    parts = schedule.deal(plan, count)

    assert sorted(place for part in parts for place in part) == list(range(len(plan)))
    where = {(schedule.pairing(plan[place]), number) for number, part in enumerate(parts) for place in part}
    assert len(where) == len({pairing for pairing, _ in where}) == len(set(map(schedule.pairing, plan)))
    assert max(map(len, parts)) - min(map(len, parts)) <= max(Counter(map(schedule.pairing, plan)).values())


@pytest.mark.parametrize(("count", "outcome"), [(2, "out_of_memory"), (3, "invalid"), (20, "skipped")])
def test_merging_all_parts_gives_what_one_run_would_have_given(count, outcome, tmp_path):
    plan = sweep(predict=True)
    whole = carried_out(tmp_path / "whole", plan, outcome)

    write(merge(in_parts(tmp_path, plan, count, outcome)), tmp_path / "merged")

    merged = store.load(tmp_path / "merged")
    assert merged.manifest.plan == whole.manifest.plan
    assert not merged.manifest.shard
    assert rows(merged.records) == rows(whole.records)
    assert len(merged.records) == len(whole.records)
    assert merged.status == "complete"


@pytest.mark.parametrize(("lost", "models"), [(2, 1), (1, 3)])
def test_parts_without_one_of_them_are_in_order_and_partial_until_it_is_merged(lost, models, tmp_path, capsys):
    """With one model each part is a round, and those of the first ones end where a sweep may."""
    plan = sweep(models=models)
    parts = in_parts(tmp_path, plan, 3)
    rest = str(parts.pop(lost))

    assert answer(["merge", *map(str, parts), "-o", str(tmp_path / "most")]) == 0

    most = store.load(tmp_path / "most")
    places = [plan.index(trial) for trial in most.manifest.plan]
    assert places == sorted(places)
    assert (len(places) < len(plan), most.status) == (True, "partial")
    assert "partial" in capsys.readouterr().err
    assert answer(["merge", str(tmp_path / "most"), rest, "-o", str(tmp_path / "all")]) == 0
    assert (store.load(tmp_path / "all").manifest.plan, store.load(tmp_path / "all").status) == (plan, "complete")


def folder_of(folder: Path, *records: Record) -> Path:
    examples.run(folder, list(records))
    for one in records:
        (folder / "logs" / f"{one.case.id}-{one.round}.log").write_text(f"{folder.name}: {one.case.strategy}")
    return folder


def one(strategy: str, *, peak: int = 1, **environment: object) -> Record:
    return make.record(strategy, environment=msgspec.structs.replace(examples.ENVIRONMENT, **environment), peak=peak)


def test_of_two_results_of_a_trial_the_later_one_is_kept_and_told(tmp_path):
    early = folder_of(tmp_path / "early", one("none", peak=1 << 30, started="2026-11-20T10:00:00Z"))
    late = folder_of(tmp_path / "late", one("none", peak=1 << 29, started="2026-11-20T11:30:00+01:00"))

    for order in ([early, late], [late, early]):
        merged = merge(order)
        assert [record.readings.peak_bytes for record in merged.records] == [1 << 29]
        assert merged.remarks == ("none, round 1: the results differ; kept the later one, of 'late'",)
        assert [log.read_text() for log in merged.logs] == ["late: none"]


def test_runs_whose_numbers_cannot_stand_beside_each_other_are_refused(tmp_path, capsys):
    runs = [folder_of(tmp_path / str(threads), one("none", num_threads=threads)) for threads in (2, 8)]

    assert answer(["merge", *map(str, runs)]) == 4
    assert "num_threads" in capsys.readouterr().err


def test_a_torn_line_is_told_and_logs_that_are_links_or_pipes_are_left_out(tmp_path, capsys):
    first = folder_of(tmp_path / "a", one("none"), one("segments:k=2"))
    second = folder_of(tmp_path / "b", one("all"))
    (tmp_path / "mine").write_text("mine")
    log, other = sorted((first / "logs").iterdir())
    log.unlink()
    log.symlink_to(tmp_path / "mine")
    other.unlink()
    os.mkfifo(other)
    (second / "logs").rename(tmp_path / "elsewhere")
    (second / "logs").symlink_to(tmp_path / "elsewhere")
    with (first / "trials.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"ca')

    assert answer(["merge", str(first), str(second), "-o", str(tmp_path / "whole")]) == 0

    assert "warning: a: the last line of trials.jsonl is torn" in capsys.readouterr().err
    assert len(store.load(tmp_path / "whole").records) == 3
    assert list((tmp_path / "whole" / "logs").iterdir()) == []
