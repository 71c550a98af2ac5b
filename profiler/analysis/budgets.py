"""The best strategy for every budget of memory, from the rows of one group. Pure: knows nothing of words."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.certainty import is_apart, overlaps
from profiler.analysis.rows import Row

MOST = 40


class Stair(msgspec.Struct, frozen=True, kw_only=True):
    """From this budget on, until that of the next stair, this strategy is the best that fits."""

    budget_bytes: int
    best: Row
    by: str  # "time", "flops" (where no time is known), or "peak" (where neither is): why it is the best
    rivals: tuple[Row, ...] = ()  # fit as well, in times that cannot be told from its own


def stairs(rows: Sequence[Row]) -> tuple[Stair, ...]:
    """One stair for each budget at which the answer changes, the smallest first; empty where nothing is ok.

    Where times are known they decide, else FLOPs, else the lowest peak is all that can be said. Of more than MOST
    stairs, so many are given, evenly and with both ends: what they say is true, and a budget between may have better.
    """
    known = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    known.sort(key=lambda row: (_peak(row), row.case.strategy != "none"))
    baseline = next((row for row in known if row.case.strategy == "none"), None)
    best: list[Row] = []
    for row in known:
        if not best or _is_better(row, best[-1], baseline):
            if best and _peak(best[-1]) == _peak(row):
                best.pop()
            best.append(row)
    if len(best) > MOST:
        best = [best[at * (len(best) - 1) // (MOST - 1)] for at in range(MOST)]
    return tuple(_stair(row, known, baseline) for row in best)


def _is_better(row: Row, before: Row, baseline: Row | None) -> bool:
    """Faster; and where it takes more memory, or stands in for `none`, not by what may be chance."""
    if _cost(row) >= _cost(before):
        return False
    by_time = _cost(row)[0] == _cost(before)[0] == 0
    is_free = _peak(row) == _peak(before) and before is not baseline
    return is_free or not by_time or not overlaps(row, before, baseline=baseline)


def _stair(best: Row, known: Sequence[Row], baseline: Row | None) -> Stair:
    by = ("time", "flops", "peak")[_cost(best)[0]]
    timed = [row for row in known if by == "time" and row.step_seconds is not None and row is not best]
    fitting = [row for row in timed if _peak(row) <= _peak(best)]
    rivals = tuple(row for row in fitting if not is_apart(row, best, baseline=baseline))
    return Stair(budget_bytes=_peak(best), best=best, by=by, rivals=rivals)


def _cost(row: Row) -> tuple[int, float]:
    """What is known beats what is not."""
    if row.step_seconds is not None:
        return 0, row.step_seconds
    if row.readings.forward_flops is not None and row.readings.backward_flops is not None:
        return 1, float(row.readings.forward_flops + row.readings.backward_flops)
    return 2, 0.0


def _peak(row: Row) -> int:
    assert row.readings.peak_bytes is not None, "only rows with a peak are looked at"
    return row.readings.peak_bytes
