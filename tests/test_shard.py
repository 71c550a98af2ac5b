"""A sweep in parts that know nothing of each other, and one run of them again."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record
from profiler.core.schedule import Shard
from profiler.engines.local import in_waves
from profiler.runs import store
from profiler.runs.merge import merge, write
from profiler.runs.store import Run
from profiler.workflows import run as workflow
from tests import make

HERE = Environment(gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="a CPU")
STRATEGIES = ("none", "all", "segments:k=2", "segments:k=64")


def sweep(*, models: int = 3, rounds: int = 3, predict: bool = False) -> tuple[Trial, ...]:
    cases = [
        make.case(strategy, model=Choice(f"mlp:depth={number}"))
        for number in range(models)
        for strategy in STRATEGIES
    ]  # fmt: skip
    return schedule.measured(cases, rounds, predict=predict)


class Fake:
    """An engine whose records are told by case and round alone; of `segments:k=64` each trial has `outcome`."""

    def __init__(self, outcome: str = "skipped") -> None:
        self.logs: Path | None = None
        self._outcome = outcome
        self.asked: list[Trial] = []

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        return in_waves(self._wave, plan, done)

    def _wave(self, ready: list[Trial]) -> Iterator[Record]:
        for trial in ready:
            self.asked.append(trial)
            yield fake(trial, self._outcome)


def fake(trial: Trial, outcome: str) -> Record:
    case, number = trial.case, int(trial.case.id, 16) % 97 + trial.round
    told: dict[str, Any] = {"case": case, "round": trial.round, "environment": HERE}
    if case.strategy == "segments:k=64" and (outcome != "invalid" or trial.round == 1):
        return make.failed(case.strategy, outcome, "too many", **told)
    record = make.record(case.strategy, seconds=(number / 100, number / 99), **told)
    if trial.round == 1:
        return record
    readings = msgspec.structs.replace(record.readings, **dict.fromkeys(("peak_bytes", "phases", "static_bytes")))
    return msgspec.structs.replace(record, readings=readings, equality=None)


def carried_out(folder: Path, plan: Sequence[Trial], engine: Fake, shard: Shard | None = None) -> Run:
    store.create(
        folder, plan=tuple(plan), command="gcprof run", environment=HERE, sources={},
        **({"shard": shard} if shard else {}),
    )  # fmt: skip
    list(workflow.run_owed(engine, store.load(folder)))
    return store.load(folder)


def in_parts(folder: Path, plan: Sequence[Trial], count: int, outcome: str = "skipped") -> list[Path]:
    """The run folders of all parts that are not empty."""
    found = []
    for index in range(1, count + 1):
        part, shard = schedule.cut(plan, Shard(index=index, count=count))
        if part:
            carried_out(folder / f"part-{index}", part, Fake(outcome), shard)
            found.append(folder / f"part-{index}")
    return found


# Which trials


def num_pairings(plan: Sequence[Trial]) -> int:
    return len({schedule.pairing(trial) for trial in plan})


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 12), models=st.integers(1, 4), rounds=st.integers(1, 4), predict=st.booleans()
)  # fmt: skip
def test_every_trial_is_in_exactly_one_part_and_no_pairing_is_cut(count, models, rounds, predict):
    plan = sweep(models=models, rounds=rounds, predict=predict)

    parts = schedule.deal(plan, count)

    assert sorted(place for part in parts for place in part) == list(range(len(plan)))
    where = {(schedule.pairing(plan[place]), number) for number, part in enumerate(parts) for place in part}
    assert len(where) == len({pairing for pairing, _ in where}) == num_pairings(plan)
    largest = max(Counter(map(schedule.pairing, plan)).values())
    assert max(map(len, parts)) - min(map(len, parts)) <= largest


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/1000000", "\u0661/2"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--shard cannot be"):
        schedule.parse_shard(text)


# One run of them again


@pytest.mark.parametrize("outcome", ["skipped", "out_of_memory", "invalid"])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_merging_all_parts_gives_what_one_run_would_have_given(count, outcome, tmp_path):
    plan = sweep(predict=True)
    whole = carried_out(tmp_path / "whole", plan, Fake(outcome))

    write(merge(in_parts(tmp_path, plan, count, outcome)), tmp_path / "merged")

    merged = store.load(tmp_path / "merged")
    assert merged.manifest.plan == whole.manifest.plan
    assert not merged.manifest.shard
    assert rows(merged.records) == rows(whole.records)
    assert len(merged.records) == len(whole.records)
    assert merged.status == "complete"


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("models", [1, 3])
def test_parts_without_one_of_them_are_in_order_and_partial_until_it_is_merged(lost, models, tmp_path, capsys):
    """Whichever is lost: with one model each part is a round, and those of the first ones end where a sweep may."""
    plan = sweep(models=models)
    parts = in_parts(tmp_path, plan, 3)
    rest = str(parts.pop(lost))

    assert answer(["merge", *map(str, parts), "-o", str(tmp_path / "most")]) == 0

    assert "partial" in capsys.readouterr().err
    most = store.load(tmp_path / "most")
    places = [plan.index(trial) for trial in most.manifest.plan]
    assert places == sorted(places)
    assert (len(places) < len(plan), most.status) == (True, "partial")
    assert answer(["show", str(tmp_path / "most"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "partial"
    assert answer(["merge", str(tmp_path / "most"), rest, "-o", str(tmp_path / "all")]) == 0
    assert "partial" not in capsys.readouterr().err
    assert (store.load(tmp_path / "all").manifest.plan, store.load(tmp_path / "all").status) == (plan, "complete")
