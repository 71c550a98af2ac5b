"""Compares rows of one run in time, by the rule of `time_ratio`, and finds their Pareto frontier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from profiler.analysis import time_ratio
from profiler.analysis.cross_run_ratio import Sample, estimated, ratio_of, sample
from profiler.analysis.time_ratio import TimeRatio, TimeVerdict, quotient
from profiler.core.paired_steps import RoundSteps, calm_ratios
from profiler.core.record import Record

if TYPE_CHECKING:
    from profiler.analysis.rows import Row

SURE = ("faster", "slower")
MOST_COMPARED = 2048  # pairs of rows; but each row is compared with at least one


def paired(rounds: Iterable[Record]) -> TimeRatio | None:
    """Return the ratio of steps with the strategy to steps without it that alternated with them; None if none did."""
    steps = [
        RoundSteps(own, plain, readings.processor_seconds or (), readings.plain_processor_seconds or ())
        for readings in (record.readings for record in rounds)
        if (own := readings.step_seconds) and (plain := readings.plain_step_seconds)
    ]
    ratios = calm_ratios(steps)
    return time_ratio.of_pairs(ratios) if any(ratios) else None


def unpaired(rounds: Sequence[Record], baseline_seconds: Mapping[int, float]) -> TimeRatio | None:
    """Return the ratio of steps to the baseline's of the same rounds, in other processes: slow drift cancels."""
    pairs = [(record.readings.step_seconds, baseline_seconds.get(record.round)) for record in rounds]
    ratios = [median(seconds) / baseline for seconds, baseline in pairs if seconds and baseline]
    if ratios and rounds[0].case.has_estimated_times:
        return TimeRatio(ratio=median(ratios), low=min(ratios), high=max(ratios))
    return time_ratio.of_rounds(ratios) if ratios else None


class Timed:
    """A row with what comparisons of its time need, looked up once for several comparisons."""

    __slots__ = ("_sample", "is_estimated", "paired", "peak_bytes", "row", "slowness")

    def __init__(self, row: Row) -> None:
        time = row.time
        self.row = row
        self.peak_bytes = row.readings.peak_bytes
        self.slowness = slowness(row)
        self.is_estimated = row.case.has_estimated_times
        self.paired = time if time is not None and (time.num_pairs > 0 or time.interval is not None) else None
        is_asked = row.step_seconds is not None and not self.is_estimated and self.paired is None
        self._sample = _sample(row) if is_asked else None

    @property
    def sample(self) -> Sample:
        if self._sample is None:
            self._sample = _sample(self.row)
        return self._sample

    def over(self, other: Timed) -> TimeRatio | None:
        """Return the ratio of the step to that of another row, as `against` does."""
        mine, theirs = self.row.step_seconds, other.row.step_seconds
        if mine is None or theirs is None:
            return None
        if self.is_estimated and other.is_estimated:
            ratio = estimated(theirs, mine).ratio
            return None if ratio is None else TimeRatio(ratio=ratio, low=ratio, high=ratio)
        if self.paired is not None and other.paired is not None:
            return quotient(self.paired, other.paired)
        return ratio_of(other.sample, self.sample)

    def verdict(self, other: Timed) -> TimeVerdict:
        """Return whether the row is faster or slower than the other, the same, or cannot be told apart from it."""
        return time_ratio.verdict(self.over(other), floor=self.row.time_floor)

    def is_beaten_by(self, other: Timed) -> bool:
        """Whether the other needs less memory and is surely no slower, or needs as much and is surely faster."""
        mine, theirs = self.peak_bytes, other.peak_bytes
        if mine is None or theirs is None or theirs > mine:
            return False
        return self.verdict(other) in (("slower",) if mine == theirs else ("slower", "same"))


def against(row: Row, other: Row) -> TimeRatio | None:
    """Return the ratio of two steps of one run: from their ratios to `none`, else from their seconds.

    Two rows that alternated with `none` are never compared by their seconds, which contain the drift between them.
    """
    return Timed(row).over(Timed(other))


def verdict(row: Row, other: Row) -> TimeVerdict:
    """Return whether a row is faster or slower than another of its run, the same, or cannot be told apart from it."""
    return Timed(row).verdict(Timed(other))


def is_apart(row: Row, other: Row) -> bool:
    """Whether the times of two rows of one run can be told apart."""
    return verdict(row, other) in SURE


def unbeaten(rows: Iterable[Timed]) -> list[Row]:
    """Return the Pareto frontier of a group: rows that no frontier row dominates with certainty.

    Only rows that are ok, with a peak and a time, count. With many rows, each is compared only with the fastest of the
    frontier, which dominate most, so that the time is linear in the number of rows.
    """
    points = [timed for timed in rows if timed.row.outcome == "ok" and timed.row.step_seconds is not None]
    most = max(1, MOST_COMPARED // max(1, len(points)))
    kept: list[Row] = []
    beating: list[Timed] = []
    for timed in sorted(points, key=lambda timed: (timed.peak_bytes or 0, timed.slowness)):
        if timed.peak_bytes is not None and not any(map(timed.is_beaten_by, beating)):
            kept.append(timed.row)
            beating = sorted([*beating, timed], key=lambda timed: timed.slowness)[:most]
    return kept


class TimePlace(NamedTuple):
    """Where a step is drawn in a plot of its group, in seconds."""

    low: float
    middle: float
    high: float


def time_places(rows: Sequence[Row]) -> list[TimePlace]:
    """Return where the steps of one group are drawn: by their ratios to `none`, else at their medians.

    So plots show what the verdicts say: medians of processes that ran at different times may be in another order.
    """
    none = next((row for row in rows if row.case == row.baseline and row.step_seconds), None)
    return [_place(row, none.step_seconds if none else None) for row in rows]


def _place(row: Row, unit: float | None) -> TimePlace:
    if unit is not None and row.time and (row.time.interval or row.time.num_pairs):
        low, high = row.time.interval or (row.time.ratio, row.time.ratio)
        return TimePlace(low * unit, row.time.ratio * unit, high * unit)
    seconds, spread = row.step_seconds or 0.0, row.step_spread or 0.0
    return TimePlace(seconds * (1 - spread), seconds, seconds * (1 + spread))


def slowness(row: Row) -> float:
    """Return what rows of one group are sorted by: their ratio to the baseline, else their seconds."""
    return row.time.ratio if row.time else row.step_seconds or 0.0


def samples_of_rounds(rounds: Iterable[Record]) -> list[tuple[float, ...]]:
    """Return the seconds of the steps of each round; those of a first look only if there are no others."""
    timed = [record.readings for record in rounds if record.readings.step_seconds]
    full = [readings for readings in timed if readings.stopped != "look"]
    return [readings.step_seconds or () for readings in full or timed]


def _sample(row: Row) -> Sample:
    rounds = samples_of_rounds(row.rounds)
    return sample(rounds * 2 if row.case.has_estimated_times else rounds)
