"""Recommends a strategy from the rows of one group.

Only rows that are ok are recommended: wrong gradients are no saving, and neither is what did not run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.live_bytes import largest_part
from profiler.analysis.rows import SURE, Row, against, is_apart, slowness, time_verdict_of

MOST = 0.9  # fraction of the largest saving: the fastest row that saves so much is recommended
LEAST = 0.02  # fraction of the baseline's peak: a smaller saving counts as none
SAME = 0.005  # fraction of the lowest peak: peaks this close to it count as the same
MOST_POINTS = 40  # most points of a frontier


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Why the lowest peak is no lower: its largest part. `kind` is optimizer, static, transient or saved."""

    kind: str
    nbytes: int
    phase: str | None
    num_alike: int  # different amounts of saved bytes among the strategies with the same peak


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommendation for a group. If nothing in it is ok, every field is empty."""

    chosen: Row | None = None  # the strategy to take; the baseline itself if no other saves memory
    baseline: Row | None = None  # the step without checkpointing, if it is ok
    rivals: tuple[Row, ...] = ()  # save as much, in times that cannot be told apart from the chosen one's
    certainty: str = "missing"  # how sure the time of the chosen row is
    lowest: Row | None = None  # the row with the lowest peak
    limit: Limit | None = None


def advise(rows: Sequence[Row]) -> Advice:
    """Recommend the fastest of the rows that save most; if `none` did not run, of all rows; if nothing saves, `none`.

    Of rows whose times cannot be told apart from the fastest, the one with the lowest peak is taken.
    """
    measured = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    if not measured:
        return Advice()
    baseline = next((row for row in measured if row.case.label == "none"), None)
    good = _good(measured, baseline) if baseline else measured
    chosen = _fastest(good) if good else baseline
    assert chosen, "where nothing is good, there is a baseline that it was compared with"
    lowest = min(measured, key=_peak)
    return Advice(
        chosen=chosen,
        baseline=baseline,
        rivals=tuple(row for row in good if row is not chosen and _is_rival(row, chosen)),
        certainty=certainty(chosen, baseline=baseline),
        lowest=lowest,
        limit=_limit(lowest, measured),
    )


def _good(measured: Sequence[Row], baseline: Row) -> list[Row]:
    """Return the rows that save nearly as much as the best; empty if none saves."""
    least = min(map(_peak, measured))
    if _peak(baseline) - least < LEAST * _peak(baseline):
        return []
    return [row for row in measured if _peak(baseline) - _peak(row) >= MOST * (_peak(baseline) - least)]


def _fastest(rows: Sequence[Row]) -> Row:
    """Return the fastest row, or of those that cannot be told apart from it the one with the lowest peak.

    A row that another beats in both medians, of time and peak, is never taken.
    """
    timed = sorted((row for row in rows if row.step_seconds is not None), key=slowness)
    if not timed:
        return min(rows, key=_peak)
    first = timed[0]
    timed = [row for at, row in enumerate(timed) if all(_peak(row) < _peak(faster) for faster in timed[:at])]
    return min((row for row in timed if row is first or _is_rival(row, first)), key=_peak)


def _is_rival(row: Row, chosen: Row) -> bool:
    timed = row.step_seconds is not None and chosen.step_seconds is not None
    return timed and not is_apart(row, chosen)


def _limit(lowest: Row, measured: Sequence[Row]) -> Limit | None:
    """Return the largest part of the lowest peak; None if its parts were not measured."""
    part, phase = largest_part(lowest.readings), lowest.readings.peak_phase
    if part is None:
        return None
    alike = {row.readings.saved_bytes for row in measured if _peak(row) <= (1 + SAME) * _peak(lowest)}
    kind = "optimizer" if phase == "optimizer" else part[0]
    return Limit(kind=kind, nbytes=part[1], phase=phase, num_alike=len(alike))


def _peak(row: Row) -> int:
    assert row.readings.peak_bytes is not None, "only rows with a peak are looked at"
    return row.readings.peak_bytes


class BudgetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The best strategy that fits, from this budget up to that of the next point."""

    budget_bytes: int
    best: Row
    by: str  # why it is the best: "time", "flops" (no time is known), or "peak" (neither is known)
    rivals: tuple[Row, ...] = ()  # also fit, in times that cannot be told apart from its own


def budget_frontier(rows: Sequence[Row]) -> tuple[BudgetPoint, ...]:
    """Return a point for each budget at which the best strategy changes, the smallest first; empty if nothing is ok.

    Times decide if they are known, else FLOPs, else the peak alone. Of more than MOST_POINTS points so many are
    returned, evenly and with both ends: each is true, but a budget in between may have a better one.
    """
    measured = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    measured.sort(key=lambda row: (_peak(row), row.case.label != "none"))
    baseline = next((row for row in measured if row.case.label == "none"), None)
    best: list[Row] = []
    for row in measured:
        if not best or _is_better(row, best[-1], baseline):
            if best and _peak(best[-1]) == _peak(row):
                best.pop()
            best.append(row)
    if len(best) > MOST_POINTS:
        best = [best[at * (len(best) - 1) // (MOST_POINTS - 1)] for at in range(MOST_POINTS)]
    return tuple(_budget_point(row, measured) for row in best)


def _is_better(row: Row, before: Row, baseline: Row | None) -> bool:
    """Whether a row is faster; if it takes more memory, or would replace `none`, by more than chance.

    `none` computes least: if it fits and was faster, by chance or not, there is no reason to checkpoint.
    """
    if _cost(row) >= _cost(before):
        return False
    by_time = _cost(row)[0] == _cost(before)[0] == 0
    is_free = _peak(row) == _peak(before) and before is not baseline
    return is_free or not by_time or row is baseline or is_apart(row, before)


def _budget_point(best: Row, measured: Sequence[Row]) -> BudgetPoint:
    by = ("time", "flops", "peak")[_cost(best)[0]]
    fitting = [row for row in measured if by == "time" and row is not best and _peak(row) <= _peak(best)]
    rivals = tuple(row for row in fitting if _is_rival(row, best))
    return BudgetPoint(budget_bytes=_peak(best), best=best, by=by, rivals=rivals)


def _cost(row: Row) -> tuple[int, float]:
    """Return a sort key: the time, else the FLOPs, else nothing; what is known comes first."""
    if row.step_seconds is not None:
        return 0, slowness(row)
    if row.readings.flops is not None:
        return 1, float(row.readings.flops)
    return 2, 0.0


def certainty(row: Row, *, baseline: Row | None) -> str:
    """Return how sure the time against the baseline is: "missing", "estimated", "single", "noisy", "same" or "sure"."""
    if row.time is None:
        return "missing"
    if row.case.has_estimated_times:
        return "estimated"
    ratio = against(row, baseline) if baseline else None
    if baseline is None or ratio is None or ratio.interval is None:
        return "single"
    time_verdict = time_verdict_of(row, baseline)
    return "noisy" if time_verdict == "too noisy to tell" else "sure" if time_verdict in SURE else "same"
