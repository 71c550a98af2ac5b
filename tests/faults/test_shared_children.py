"""Predictions that share a child come out as those that have one each; real processes throughout."""

from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def tracer() -> Iterator[Local]:
    with Local(stage_seconds=PATIENCE_SECONDS, measures=False) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "outcome"), [("fine", "ok"), ("kill", "crashed"), ("raise", "failed")])
def test_rows_share_a_child_and_what_goes_wrong_after_others_is_made_again_alone(
    kind, outcome, tracer, tmp_path, monkeypatch
):
    started: list[str] = []
    monkeypatch.setattr(local, "Child", lambda *of, **how: started.append(of[1]) or Child(*of, **how))
    records = {}
    for way, key in {"shared": lambda trial: ("predicted", None), "alone": lambda trial: ("", trial)}.items():
        monkeypatch.setattr(local, "_sharing", key)
        monkeypatch.setattr(tracer, "logs", tmp_path / way)
        records[way] = list(tracer.run(plan(f"tests.faulty:build:kind={kind},at=recompute")))

    assert [record.outcome for record in records["shared"]] == ["ok", "ok", outcome, "skipped", "ok"]
    assert list(map(bare, records["shared"])) == list(map(bare, records["alone"]))
    logs = [{path.name: path.read_bytes() for path in (tmp_path / way).glob("*.log")} for way in records]
    assert logs[0] == logs[1]
    assert kind != "fine" or started == [local.RUN_TRIALS] * (1 + len(STRATEGIES))
