"""Predictions that share a child come out as those that have one each; real processes throughout."""

import select
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.engines import local
from profiler.engines.child import Child
from profiler.engines.local import Local
from tests import make
from tests.program import PATIENCE_SECONDS

STRATEGIES = ("none", "own", "selective", "segments:k=9", "segments:k=1")  # `selective` is never composed of another


def plan(model: str) -> list[Trial]:
    cases = [make.case(strategy, model=Choice(model), batch_size=4, device="fake:cpu") for strategy in STRATEGIES]
    return [Trial(case=case, passes=("memory",)) for case in cases]


def bare(record: Record) -> Record:
    """Without what no two processes have in common, and without the points of a timeline, which views are among."""
    environment = record.environment and msgspec.structs.replace(record.environment, started=None)
    timeline = record.readings.timeline and msgspec.structs.replace(record.readings.timeline, phases=(), nbytes={})
    readings = msgspec.structs.replace(record.readings, timeline=timeline)
    return msgspec.structs.replace(record, readings=readings, stage_seconds={}, environment=environment)


@pytest.fixture
def num_children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries of the children that are started."""
    entries: list[str] = []

    def counted(control, entry, *arguments, **keywords):
        entries.append(entry)
        return Child(control, entry, *arguments, **keywords)

    monkeypatch.setattr(local, "Child", counted)
    return entries


@pytest.fixture(scope="module")
def tracer() -> Iterator[Local]:
    with Local(stage_seconds=PATIENCE_SECONDS, measures=False) as engine:
        yield engine


def both_ways(tracer: Local, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Record]]:
    """The records by whether children are shared; the logs are in folders of these names."""
    records = {}
    for way, key in {"shared": lambda trial: ("predicted", None), "alone": lambda trial: ("", trial)}.items():
        monkeypatch.setattr(local, "_sharing", key)
        monkeypatch.setattr(tracer, "logs", tmp_path / way)
        records[way] = list(tracer.run(plan(model)))
    return records


def logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.log")}


class Overtaking(Child):
    """Has begun before the process that asked for it goes on, as on a busy machine."""

    def __enter__(self):
        child = super().__enter__()
        assert select.select([self._channel], [], [], PATIENCE_SECONDS)[0]
        return child


def test_a_child_that_begins_before_its_parent_goes_on_has_begun_after_it_was_asked_for(tracer, monkeypatch):
    monkeypatch.setattr(local, "_sharing", lambda trial: ("predicted", None))
    monkeypatch.setattr(local, "Child", Overtaking)

    records = list(tracer.run(plan("mlp")[:2]))

    assert [(record.outcome, record.detail) for record in records] == [("ok", None)] * 2
    assert all(record.stage_seconds["start"] >= 0 for record in records)


@pytest.mark.slow
def test_rows_of_one_model_share_a_child_and_are_what_they_are_alone(tracer, tmp_path, monkeypatch, num_children):
    records = both_ways(tracer, "mlp", tmp_path, monkeypatch)

    assert num_children == [local.RUN_TRIALS, *[local.RUN_TRIALS] * len(STRATEGIES)]
    assert [record.outcome for record in records["shared"]] == ["ok", "ok", "ok", "skipped", "ok"]
    assert list(map(bare, records["shared"])) == list(map(bare, records["alone"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "outcome"), [("kill", "crashed"), ("exit", "failed"), ("raise", "failed"), ("fine", "ok")]
)
def test_what_goes_wrong_after_others_is_made_again_alone(kind, outcome, tracer, tmp_path, monkeypatch):
    records = both_ways(tracer, f"tests.faulty:build:kind={kind},at=recompute", tmp_path, monkeypatch)

    assert [record.outcome for record in records["shared"]] == ["ok", "ok", outcome, "skipped", "ok"]
    assert list(map(bare, records["shared"])) == list(map(bare, records["alone"]))
    assert logs(tmp_path / "shared") == logs(tmp_path / "alone")
