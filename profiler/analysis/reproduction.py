"""Compares published figures with ours, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from profiler.analysis.quantities import TABLE, UNITS, Value, baseline
from profiler.analysis.rows import Row
from profiler.core.case import Case, Choice
from profiler.core.record import Environment


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure, and the settings of the rows to compare it with; None allows any."""

    label: str
    quantity: str  # a key of quantities.TABLE
    published: int | float | str | None = None  # a number, or words if the source gives none; None: it does not say
    arithmetic: bool = False  # derived by counting, not given by the source
    unit: str = ""
    note: str | None = None
    model: Choice | None = None
    strategy: Choice | None = None
    optimizer: Choice | None = None
    precision: str | None = None
    batch_size: int | None = None
    accumulate: int | None = None

    def chooses(self, case: Case) -> bool:
        """Whether this figure is about a case."""
        keys = ("model", "strategy", "optimizer", "precision", "batch_size", "accumulate")
        return all(getattr(self, key) in (None, getattr(case, key)) for key in keys)


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure and ours, in the published unit."""

    what: str
    kind: str
    unit: str
    published: int | float | str | None
    arithmetic: bool
    ours: Value
    reason: str | None = None  # why there is no number of ours, or why it may not be trusted
    note: str | None = None
    other_size: bool = False  # ours is of a reduced model, so that the two cannot be compared
    spread: float | None = None  # relative spread of a time: within the rounds or between them, whichever is larger
    difference: float | None = None  # ours minus the published, in the unit; None if they cannot be compared
    relative: float | None = None  # `difference` over the published


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """The published figures of one system, compared with one run of ours."""

    name: str
    title: str
    source: str
    unsaid: tuple[str, ...]
    reduced: str | None  # what was reduced; None: full size
    environment: Environment | None
    device: str
    evidence: str  # whether ours is measured, rehearsed or predicted
    lines: tuple[ComparedFigure, ...]


def lines(figures: Iterable[PublishedFigure], rows: Sequence[Row], *, reduced: bool) -> tuple[ComparedFigure, ...]:
    """Return each published figure with ours. `reduced`: our sizes and times are those of a smaller model."""
    return tuple(_compared(figure, rows, reduced) for figure in figures)


def _compared(figure: PublishedFigure, rows: Sequence[Row], reduced: bool) -> ComparedFigure:
    quantity = TABLE[figure.quantity]
    chosen = [row for row in rows if figure.chooses(row.case)]
    value = quantity.read(chosen, rows) if chosen else None
    ours = value / UNITS[quantity.kind][figure.unit] if isinstance(value, (int, float)) else value
    if figure.unit == "B" or (isinstance(value, int) and not figure.unit):
        ours = value
    other_size = reduced and quantity.kind in ("bytes", "seconds") and not figure.arithmetic
    are_numbers = isinstance(ours, (int, float)) and isinstance(figure.published, (int, float)) and not other_size
    difference = ours - figure.published if are_numbers else None  # type: ignore[operator]  # both are numbers here
    return ComparedFigure(
        what=f"{figure.label}: {quantity.about}" if figure.label else quantity.about,
        kind=quantity.kind,
        unit=figure.unit,
        published=figure.published,
        arithmetic=figure.arithmetic,
        ours=ours,
        reason=_reason(chosen) or (_reason_of_baseline(chosen, rows) if quantity.kind in ("change", "share") else None),
        note=figure.note,
        other_size=other_size,
        spread=_spread(chosen, rows) if quantity.sampled else None,
        difference=difference,
        relative=difference / figure.published if difference is not None and figure.published else None,  # type: ignore[operator]
    )


def _spread(chosen: Sequence[Row], rows: Sequence[Row]) -> float | None:
    """Return the largest of the spreads of the row's and the baseline's steps and half the interval of the ratio."""
    concerned = [row for first in chosen[:1] for row in (first, baseline(first, rows)) if row]
    within = [row.step_spread for row in concerned if row.step_spread is not None]
    ranges = [row.time_ratio_range for row in chosen[:1] if row.time_ratio_range]
    between = [(most - least) / 2 for least, most in ranges if most > least]  # that of `none` is a point
    return max([*within, *between], default=None)


def _reason(chosen: Sequence[Row]) -> str | None:
    """Return the outcome of the first row that is not ok, or that there is no row; None if all are ok."""
    if not chosen:
        return "not in this run"
    return next((_outcome(row) for row in chosen if row.outcome != "ok"), None)


def _reason_of_baseline(chosen: Sequence[Row], rows: Sequence[Row]) -> str | None:
    """Return why there is nothing to compare a change or a share with; None if there is."""
    none = baseline(chosen[0], rows)
    if none is None:
        return "nothing to compare with: the run has no row without checkpointing"
    return None if none.outcome == "ok" else f"nothing to compare with: none is {_outcome(none)}"


def _outcome(row: Row) -> str:
    words = row.outcome.replace("_", " ")
    return f"{words}: {row.detail}" if row.detail else words
