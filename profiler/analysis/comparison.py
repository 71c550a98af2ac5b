"""Compares several runs: matching rows, each against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.comparability import Difference, circumstances, idle, refuse_mixed
from profiler.analysis.cross_run_ratio import Contrast
from profiler.analysis.memory_fit import SideAdvice, advise_sides
from profiler.analysis.pairing import ALIGN, Key, SampledRow, Side, peaks, sides, times
from profiler.analysis.ranking import Order, orders
from profiler.core.case import FAKE
from profiler.core.errors import UserError
from profiler.core.record import Record


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one side, and how it compares with the baseline's; None if there is nothing to compare."""

    outcome: str
    detail: str | None = None
    predicted: bool
    evidence: str
    peak_bytes: int | None = None  # None if it is not ok
    step_seconds: float | None = None
    peak: Contrast | None = None
    time: Contrast | None = None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The matching rows of all sides; None for a side without one."""

    key: dict[str, str]
    cells: tuple[Cell | None, ...]


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One side, without its rows."""

    label: str
    name: str
    run: str
    device: str
    predicted: bool
    evidence: str  # measured, rehearsed or predicted; several are joined


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of several runs; the first side is the baseline."""

    sides: tuple[SideSummary, ...]
    differences: tuple[Difference, ...]
    same: tuple[Difference, ...]
    matches: tuple[Match, ...]
    orders: tuple[Order, ...]
    advice: tuple[SideAdvice, ...]
    remarks: tuple[str, ...]


def compare_runs(
    runs: Sequence[tuple[str, Sequence[Record]]], *, align: Sequence[str] = ALIGN, allowed: Sequence[str] = ()
) -> Comparison:
    """Compare runs, by name, with the first. Raises UserError as `read_sides` and `compare_sides` do."""
    align = [name for name in align if name not in allowed]
    return compare_sides(read_sides(runs, align=align), align=align, allowed=allowed)


def read_sides(runs: Sequence[tuple[str, Sequence[Record]]], *, align: Sequence[str]) -> tuple[Side, ...]:
    """Return the sides of runs. Raises UserError (exit code 4) if there are fewer than two, or a run has no records."""
    empty = next((name for name, records in runs if not records), None)
    if empty is not None:
        raise UserError(f"'{empty}' has no records yet", hint="let it run to its end, or leave it out", exit_code=4)
    compared = sides(runs, align=align)
    if len(compared) < 2:
        raise UserError("there is only one run on one device here", hint="name two runs", exit_code=4)
    return compared


def compare_sides(compared: Sequence[Side], *, align: Sequence[str], allowed: Sequence[str] = ()) -> Comparison:
    """Compare sides with the first. Raises UserError (exit code 4) if they differ in what is not allowed to differ."""
    refuse_mixed(compared, align=align, allowed=allowed)
    differences = circumstances(compared)
    keys = dict.fromkeys(key for side in compared for key in side.points)
    return Comparison(
        sides=tuple(_summary(side) for side in compared),
        differences=tuple(difference for difference in differences if not difference.is_one),
        same=tuple(difference for difference in differences if difference.is_one),
        matches=tuple(_match(key, compared, align) for key in keys),
        orders=orders(compared, align=align),
        advice=advise_sides(compared, align=align),
        remarks=(*_remarks(compared), *idle(compared, allowed)),
    )


def _summary(side: Side) -> SideSummary:
    predicted = side.device.startswith(FAKE)
    return SideSummary(
        label=side.label, name=side.name, run=side.run, device=side.device, predicted=predicted, evidence=side.evidence
    )


def _match(key: Key, compared: Sequence[Side], align: Sequence[str]) -> Match:
    points = [side.points.get(key) for side in compared]
    cells = (_cell(point, points[0] if place else None) for place, point in enumerate(points))
    return Match(key=dict(zip(align, key, strict=True)), cells=tuple(cells))


def _cell(point: SampledRow | None, baseline: SampledRow | None) -> Cell | None:
    if point is None:
        return None
    row = point.row
    return Cell(
        outcome=row.outcome,
        detail=row.detail,
        predicted=row.case.is_predicted,
        evidence=row.evidence,
        peak_bytes=point.peak_bytes,
        step_seconds=point.step_seconds,
        peak=peaks(baseline, point) if baseline else None,
        time=times(baseline, point) if baseline else None,
    )


def _remarks(compared: Sequence[Side]) -> tuple[str, ...]:
    once = [side.label for side in compared if _is_of_one_round(side)]
    text = "of one round: its intervals cover the spread within a process, not that between processes"
    remarks = [f"{', '.join(once)}: {text}; --rounds 3 covers both"] if once else []
    baseline, *others = compared
    apart = [f"{side.label} {side.evidence}" for side in others if side.evidence != baseline.evidence]
    if apart:
        kinds = f"{baseline.label} is {baseline.evidence}, {' and '.join(apart)}"
        remarks.append(f"{kinds}: peaks of different kinds differ by their errors, and neither is better or worse")
    return tuple(remarks)


def _is_of_one_round(side: Side) -> bool:
    timed = [point for point in side.points.values() if point.rounds and not point.row.case.has_estimated_times]
    return bool(timed) and all(len(point.rounds) == 1 for point in timed)
