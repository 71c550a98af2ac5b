"""Which strategy each side of a comparison should use in its own memory. Pure: knows nothing of screens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.budgets import stairs
from profiler.analysis.fit import needed
from profiler.analysis.rows import Row
from profiler.analysis.sides import Side, without_strategy


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest that fits, of one group on one side, or why there is none."""

    group: tuple[str, ...]
    label: str
    memory_bytes: int | None
    strategy: str | None = None
    needed_bytes: int | None = None  # of that strategy, else of the one that needs least
    step_seconds: float | None = None
    reason: str | None = None


def advise(sides: Sequence[Side], *, align: Sequence[str]) -> tuple[Advice, ...]:
    """For every group that the baseline has, and every side."""
    groups = dict.fromkeys(without_strategy(key, align) for key in sides[0].points)
    return tuple(_advice(group, side, align) for group in groups for side in sides)


def taken(row: Row) -> int | None:
    """Bytes that the step takes of its device's memory: on a GPU what is reserved, with CUDA's own context."""
    if row.outcome != "ok" or row.readings.peak_bytes is None:
        return None
    return row.readings.peak_bytes if row.case.device == "cpu" else needed(row)


def _advice(group: tuple[str, ...], side: Side, align: Sequence[str]) -> Advice:
    of_group = [point.row for key, point in side.points.items() if without_strategy(key, align) == group]
    known = [(row, nbytes) for row in of_group if (nbytes := taken(row)) is not None]
    memory = next((row.environment.device_bytes for row in of_group if row.environment), None)
    said = Advice(group=group, label=side.label, memory_bytes=memory)
    if not known:
        return msgspec.structs.replace(said, reason="nothing ran" if of_group else "not in this run")
    if memory is None:
        return msgspec.structs.replace(said, reason="its memory is not known")
    fitting = [(row.step_seconds, nbytes, row) for row, nbytes in known if nbytes <= memory]
    if not fitting:
        least = min(nbytes for _, nbytes in known)
        return msgspec.structs.replace(said, needed_bytes=least, reason="none of these fits")
    if all(seconds is None for seconds, _, _ in fitting):
        return msgspec.structs.replace(said, reason="no times")
    best = stairs([row for _, _, row in fitting])[-1].best
    return msgspec.structs.replace(
        said, strategy=str(best.case.strategy), needed_bytes=taken(best), step_seconds=best.step_seconds
    )
