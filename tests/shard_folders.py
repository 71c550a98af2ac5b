"""What the shards of one plan hold."""

from typing import Any

from profiler.core.record import Record
from profiler.runs.store import Run


def by_plan(run: Run) -> list[Record]:
    found = {(record.case, record.round): record for record in run.records}
    assert len(found) == len(run.records)
    return [found[key] for trial in run.manifest.plan if (key := (trial.case, trial.round)) in found]


def read(record: Record) -> tuple[Any, ...]:
    """All of a record that is exact: bytes, and what the comparison of gradients gave."""
    readings, equality = record.readings, record.equality
    exact = (readings.static_bytes, readings.saved_bytes, readings.peak_bytes, readings.phases, readings.hidden_bytes)
    return record.case, record.round, record.outcome, record.detail, exact, equality and equality.digests
