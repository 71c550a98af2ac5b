"""Samples a second, and the most of them that a memory allows. Pure: knows nothing of files or of screens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.fit import needed
from profiler.analysis.rows import Row


def samples_per_second(row: Row) -> float | None:
    """Of the median step, all micro-batches and ranks; None where there is no time, or no size of the batch."""
    case = row.case
    if case.batch_size is None or not row.step_seconds:
        return None
    return case.batch_size * case.accumulate * case.num_ranks / row.step_seconds


def holds(row: Row) -> bool | None:
    """Whether its device has the memory for it: what was measured had it; a prediction is asked. None: not known."""
    if row.outcome == "out_of_memory":
        return False
    if row.outcome != "ok":
        return None
    if not row.case.is_predicted:
        return True
    limit = row.environment.device_bytes if row.environment else None
    if limit is None or row.readings.peak_bytes is None:
        return None
    return (row.readings.peak_bytes if row.case.twin.device == "cpu" else needed(row)) <= limit


def device_memory(rows: Sequence[Row]) -> int | None:
    """That of the one device of these rows, where it is known."""
    sizes = {row.environment.device_bytes for row in rows if row.environment}
    return sizes.pop() if len(sizes) == 1 else None


def stairs(rows: Iterable[Row]) -> list[Row]:
    """The rows that give more samples a second than all that take no more memory; the smallest first.

    What the device has no memory for is none of them.
    """
    found = [row for row in rows if row.outcome == "ok" and holds(row) is not False and _point(row) is not None]
    best: list[Row] = []
    for row in sorted(found, key=lambda row: (row.readings.peak_bytes or 0, -(samples_per_second(row) or 0.0))):
        if not best or (samples_per_second(row) or 0.0) > (samples_per_second(best[-1]) or 0.0):
            best.append(row)
    return best


def _point(row: Row) -> tuple[int, float] | None:
    peak, rate = row.readings.peak_bytes, samples_per_second(row)
    return None if peak is None or rate is None else (peak, rate)
