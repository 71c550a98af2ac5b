"""How sure the times of rows are, and whether two can be told apart. Pure: knows nothing of words or of screens."""

from __future__ import annotations

from profiler.analysis.rows import Row

NOISY = "GCP012"

Span = tuple[float, float]


def span(row: Row, *, baseline: Row) -> Span | None:
    """Where the time of a row lies, as a ratio to its baseline; None where nobody can say.

    Over several rounds it is the range of their own ratios. In a single one, the spreads of both rows are added.
    """
    if row is baseline:
        return 1.0, 1.0
    if row.case.is_predicted:
        return None
    if row.time_ratio_range and row.time_ratio_range[0] < row.time_ratio_range[1]:
        return row.time_ratio_range
    if row.step_spread is None or baseline.step_spread is None:
        return None
    return _around(row.time_ratio, row.step_spread + baseline.step_spread)


def is_apart(row: Row, other: Row, *, baseline: Row | None) -> bool:
    """Whether the times of two rows can be told apart. Estimates have no spread: they differ where they do."""
    if row.case.is_predicted and other.case.is_predicted:
        return row.step_seconds != other.step_seconds
    mine, others = _spans(row, other, baseline)
    return mine is not None and others is not None and (mine[1] < others[0] or others[1] < mine[0])


def overlaps(row: Row, other: Row, *, baseline: Row | None) -> bool:
    """Whether the spreads of two rows are known and reach into each other: a faster one may then be so by chance."""
    if row.case.is_predicted and other.case.is_predicted:
        return False
    mine, others = _spans(row, other, baseline)
    return mine is not None and others is not None and mine[0] <= others[1] and others[0] <= mine[1]


def certainty(row: Row, *, baseline: Row | None) -> str:
    """Of the time against the baseline: "missing", "estimated", "single", "noisy", "same" or "sure"."""
    if row.time_ratio is None:
        return "missing"
    if row.case.is_predicted:
        return "estimated"
    found = span(row, baseline=baseline) if baseline else None
    if found is None:
        return "single"
    if any(note.code == NOISY for one in (row, baseline) if one for note in one.notes):
        return "noisy"
    return "same" if found[0] <= 1 <= found[1] else "sure"


def _spans(row: Row, other: Row, baseline: Row | None) -> tuple[Span | None, Span | None]:
    """Of both by one measure: ratios to the baseline where there are rounds, or it is one of them; else seconds."""
    rounds = [one.time_ratio_range for one in (row, other)]
    if baseline and (row is baseline or other is baseline or all(one and one[0] < one[1] for one in rounds)):
        return span(row, baseline=baseline), span(other, baseline=baseline)
    return _around(row.step_seconds, row.step_spread), _around(other.step_seconds, other.step_spread)


def _around(middle: float | None, spread: float | None) -> Span | None:
    return None if middle is None or spread is None else (middle * (1 - spread), middle * (1 + spread))
