"""Two rows against each other, by bytes and by seconds. Pure: knows nothing of runs or of screens."""

from __future__ import annotations

import msgspec

from profiler.analysis.ratio_test import Contrast, estimated, exact, sampled
from profiler.analysis.rows import Row


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A row with the step's samples of each of its rounds."""

    row: Row
    rounds: tuple[tuple[float, ...], ...]

    @property
    def is_ok(self) -> bool:
        return self.row.outcome == "ok"


def peaks(before: Point, after: Point) -> Contrast | None:
    """The peaks; None where either is not ok or was not measured."""
    first, second = before.row.readings.peak_bytes, after.row.readings.peak_bytes
    return None if first is None or second is None or not _both(before, after) else exact(first, second)


def times(before: Point, after: Point) -> Contrast | None:
    """The steps; None where either is not ok or was not measured. A prediction has no noise of its own."""
    first, second = before.row.step_seconds, after.row.step_seconds
    if first is None or second is None or not _both(before, after):
        return None
    if before.row.case.is_predicted and after.row.case.is_predicted:
        return estimated(first, second)
    return sampled(_rounds(before), _rounds(after))


def _both(before: Point, after: Point) -> bool:
    return before.is_ok and after.is_ok


def _rounds(point: Point) -> tuple[tuple[float, ...], ...]:
    return point.rounds * 2 if point.row.case.is_predicted else point.rounds
