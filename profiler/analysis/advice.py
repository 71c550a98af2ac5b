"""Which strategy to take, told from the rows of one group, and no more than they tell.

Only rows that are ok are ever advised: wrong gradients are no saving, and neither is what did not run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.live_bytes import peak_parts
from profiler.analysis.row_times import SURE, against, is_apart, slowness, verdict
from profiler.analysis.rows import Row

MOST = 0.9  # of the largest saving: of those that reach so much, the fastest is advised
LEAST = 0.02  # of the baseline's peak: what saves less saves nothing
SAME = 0.005  # of the lowest peak: so close to it, others have the same
MOST_POINTS = 40  # of a frontier


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Why the lowest peak is no lower: its largest part. `kind` is optimizer, static, transient or saved."""

    kind: str
    nbytes: int
    phase: str | None
    num_alike: int  # strategies with the same peak although they keep other amounts between forward and backward


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a group say. Of a group in which nothing is ok, every field is empty."""

    chosen: Row | None = None  # the strategy to take; the baseline itself where no other saves
    baseline: Row | None = None  # the step without checkpointing, where it is ok
    rivals: tuple[Row, ...] = ()  # save as much, in times that cannot be told from that of the chosen one
    certainty: str = "missing"  # of the chosen one's time
    lowest: Row | None = None  # the lowest peak of all
    limit: Limit | None = None


def advise(rows: Sequence[Row]) -> Advice:
    """The fastest of those that save most; where `none` did not run, the fastest of what did; else `none`.

    Of those whose times cannot be told from the fastest, it is the one with the lowest peak.
    """
    measured = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    if not measured:
        return Advice()
    baseline = next((row for row in measured if row.case.strategy == "none"), None)
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
    """The rows that save nearly as much as any; empty where none saves."""
    least = min(map(_peak, measured))
    if _peak(baseline) - least < LEAST * _peak(baseline):
        return []
    return [row for row in measured if _peak(baseline) - _peak(row) >= MOST * (_peak(baseline) - least)]


def _fastest(rows: Sequence[Row]) -> Row:
    """By time as far as it can be told, then by peak; what another beats in both by its median is never taken."""
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
    """None where the parts of the peak were not measured."""
    parts = peak_parts(lowest.readings)
    if parts is None:
        return None
    sizes = {"static": parts.static, "transient": parts.transient, "saved": parts.saved}
    kind = max(sizes, key=sizes.__getitem__)
    phase = lowest.readings.peak_phase
    alike = {row.readings.saved_bytes for row in measured if _peak(row) <= (1 + SAME) * _peak(lowest)}
    return Limit(
        kind="optimizer" if phase == "optimizer" else kind, nbytes=sizes[kind], phase=phase, num_alike=len(alike)
    )


def _peak(row: Row) -> int:
    assert row.readings.peak_bytes is not None, "only rows with a peak are looked at"
    return row.readings.peak_bytes


class BudgetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """From this budget on, until that of the next point, this strategy is the best that fits."""

    budget_bytes: int
    best: Row
    by: str  # "time", "flops" (where no time is known), or "peak" (where neither is): why it is the best
    rivals: tuple[Row, ...] = ()  # fit as well, in times that cannot be told from its own


def budget_frontier(rows: Sequence[Row]) -> tuple[BudgetPoint, ...]:
    """One point for each budget at which the answer changes, the smallest first; empty where nothing is ok.

    Where times are known they decide, else FLOPs, else the lowest peak is all that can be said. Of more than
    MOST_POINTS so many are given, evenly and with both ends: each is true, and a budget between may have a better one.
    """
    measured = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    measured.sort(key=lambda row: (_peak(row), row.case.strategy != "none"))
    baseline = next((row for row in measured if row.case.strategy == "none"), None)
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
    """Faster; and where it takes more memory, or stands in for `none`, not by what may be chance.

    `none` computes least: where it fits and was faster, chance or not, there is no reason to checkpoint.
    """
    if _cost(row) >= _cost(before):
        return False
    by_time = _cost(row)[0] == _cost(before)[0] == 0
    is_free = _peak(row) == _peak(before) and before is not baseline
    return is_free or not by_time or row is baseline or is_apart(row, before)


def _budget_point(best: Row, measured: Sequence[Row]) -> BudgetPoint:
    by = ("time", "flops", "peak")[_cost(best)[0]]
    timed = [row for row in measured if by == "time" and row.step_seconds is not None and row is not best]
    fitting = [row for row in timed if _peak(row) <= _peak(best)]
    rivals = tuple(row for row in fitting if not is_apart(row, best))
    return BudgetPoint(budget_bytes=_peak(best), best=best, by=by, rivals=rivals)


def _cost(row: Row) -> tuple[int, float]:
    """What is known beats what is not."""
    if row.step_seconds is not None:
        return 0, slowness(row)
    if row.readings.forward_flops is not None and row.readings.backward_flops is not None:
        return 1, float(row.readings.forward_flops + row.readings.backward_flops)
    return 2, 0.0


def certainty(row: Row, *, baseline: Row | None) -> str:
    """Of the time against the baseline: "missing", "estimated", "single", "noisy", "same" or "sure"."""
    if row.time is None:
        return "missing"
    if row.case.is_predicted:
        return "estimated"
    ratio = against(row, baseline) if baseline else None
    if baseline is None or ratio is None or ratio.interval is None:
        return "single"
    time_verdict = verdict(row, baseline)
    return "noisy" if time_verdict == "too noisy to tell" else "sure" if time_verdict in SURE else "same"
