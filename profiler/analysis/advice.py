"""What to do, told from the rows of one group, and no more than they tell. Pure: knows nothing of words.

Only rows that are ok are ever advised: wrong gradients are no saving, and neither is what did not run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.certainty import certainty, is_apart
from profiler.analysis.composition import compose
from profiler.analysis.rows import Row

MOST = 0.9  # of the largest saving: of those that reach so much, the fastest is advised
LEAST = 0.02  # of the baseline's peak: what saves less saves nothing
SAME = 0.005  # of the lowest peak: so close to it, others have the same


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
    known = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes is not None]
    if not known:
        return Advice()
    baseline = next((row for row in known if row.case.strategy == "none"), None)
    good = _good(known, baseline) if baseline else known
    chosen = _fastest(good, baseline) if good else baseline
    assert chosen, "where nothing is good, there is a baseline that it was compared with"
    lowest = min(known, key=_peak)
    return Advice(
        chosen=chosen,
        baseline=baseline,
        rivals=tuple(row for row in good if row is not chosen and _is_rival(row, chosen, baseline)),
        certainty=certainty(chosen, baseline=baseline),
        lowest=lowest,
        limit=_limit(lowest, known),
    )


def _good(known: Sequence[Row], baseline: Row) -> list[Row]:
    """The rows that save nearly as much as any; empty where none saves."""
    least = min(map(_peak, known))
    if _peak(baseline) - least < LEAST * _peak(baseline):
        return []
    return [row for row in known if _peak(baseline) - _peak(row) >= MOST * (_peak(baseline) - least)]


def _fastest(rows: Sequence[Row], baseline: Row | None) -> Row:
    """By time as far as it can be told, then by peak; what another beats in both by its median is never taken."""
    timed = sorted((row for row in rows if row.step_seconds is not None), key=lambda row: row.step_seconds or 0.0)
    if not timed:
        return min(rows, key=_peak)
    first = timed[0]
    timed = [row for at, row in enumerate(timed) if all(_peak(row) < _peak(faster) for faster in timed[:at])]
    return min((row for row in timed if row is first or _is_rival(row, first, baseline)), key=_peak)


def _is_rival(row: Row, chosen: Row, baseline: Row | None) -> bool:
    timed = row.step_seconds is not None and chosen.step_seconds is not None
    return timed and not is_apart(row, chosen, baseline=baseline)


def _limit(lowest: Row, known: Sequence[Row]) -> Limit | None:
    """None where the parts of the peak were not measured."""
    parts = compose(lowest.readings)
    if parts is None:
        return None
    sizes = {"static": parts.static, "transient": parts.transient, "saved": parts.saved}
    kind = max(sizes, key=sizes.__getitem__)
    phase = lowest.readings.peak_phase
    alike = {row.readings.saved_bytes for row in known if _peak(row) <= (1 + SAME) * _peak(lowest)}
    return Limit(
        kind="optimizer" if phase == "optimizer" else kind, nbytes=sizes[kind], phase=phase, num_alike=len(alike)
    )


def _peak(row: Row) -> int:
    assert row.readings.peak_bytes is not None, "only rows with a peak are looked at"
    return row.readings.peak_bytes
