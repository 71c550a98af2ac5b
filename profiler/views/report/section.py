"""The contents of a section of the report, which shows one group of rows, for the template."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.advice import Advice, advise, budget_frontier
from profiler.analysis.live_bytes import peak_parts
from profiler.analysis.rows import Row
from profiler.core.record import Readings
from profiler.core.units import MISSING, bytes_text
from profiler.views.report import grids, sentence
from profiler.views.report.areas import AreaChart, areas
from profiler.views.report.bars import BarChart, DotRows, category_bars, dot_rows, phase_bars
from profiler.views.report.frontier_points import FrontierChart, frontier
from profiler.views.report.grids import Grid, Remark, Twins
from profiler.views.sanitize import plain, short, shortened
from profiler.views.tables.columns import heading, ratio_text, reasons
from profiler.views.tables.evidence import peak_name
from profiler.views.tables.explanation import module_name

LONGEST_REASON, LONGEST_TITLE = 300, 240  # letters
NUM_STOPS = 40  # of the slider, evenly spaced, besides those at the choices


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a run is shown, so that the page stays small."""

    sections: int
    rows: int  # of a section: in its table and its picture
    lines: int  # of a picture with one line a strategy
    samples: int  # of a strategy
    timelines: int  # of a section


class BudgetChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best strategy from a budget upwards: the id of its case, and a description."""

    case: str
    budget_bytes: int
    budget: str
    said: str


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The slider: the budgets that it stops at, in bytes, and the choices in ascending order."""

    stops: tuple[int, ...]
    start: int  # the index of the stop at the peak of the advised strategy
    below: str  # the budget of the first choice, in words
    nothing: str
    choices: tuple[BudgetChoice, ...]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown of one group of rows."""

    anchor: str
    title: str
    evidence: str
    sentence: str
    brief: tuple[str, ...]  # peak of none, the advised strategy, its peak, its time against none
    frontier: FrontierChart | None
    budgets: Budgets | None
    table: Grid
    num_left_out: int  # rows that are not shown
    reasons: tuple[str, ...]
    categories: BarChart | None
    timelines: AreaChart | None
    phases: BarChart | None
    phase_table: Grid | None
    explanation: tuple[str, ...]
    predictions: Grid | None
    equality: Grid | None
    dot_rows: DotRows | None
    samples: Grid | None
    environments: Grid | None
    remarks: tuple[Remark, ...]


def section(rows: Sequence[Row], *, twins: Twins, anchor: str, limits: PageLimits) -> Section:
    """Return the section of one group of rows; `twins` are those of all groups of the run."""
    advice = advise(rows)
    shown, drawn = chosen(rows, advice, limits.rows), chosen(rows, advice, limits.lines)
    return Section(
        anchor=anchor,
        title=short(heading(rows), LONGEST_TITLE),
        evidence=rows[0].evidence,
        sentence=sentence.sentence(advice, rows),
        brief=_brief(advice),
        frontier=frontier(shown),
        budgets=_budgets(rows, advice),
        table=grids.main(shown),
        num_left_out=len(rows) - len(shown),
        reasons=tuple(plain(shortened(text, LONGEST_REASON)) for text in reasons(shown)),
        categories=category_bars(drawn),
        timelines=areas(chosen([row for row in rows if row.readings.timeline], advice, limits.timelines)),
        phases=phase_bars(drawn),
        phase_table=grids.phases(drawn),
        explanation=_explanation(drawn),
        predictions=grids.predictions(drawn, twins=twins, most=limits.rows),
        equality=grids.equality(drawn),
        dot_rows=dot_rows(drawn, most=limits.samples),
        samples=grids.samples(drawn, most=limits.samples),
        environments=grids.environments(rows),
        remarks=grids.remarks(shown),
    )


def chosen(rows: Sequence[Row], advice: Advice, most: int) -> list[Row]:
    """Return at most `most` rows in their order; the advised, the baseline, the lowest and the frontier come first."""
    first = (advice.baseline, advice.chosen, advice.lowest)

    def rank(at: int) -> tuple[int, int]:
        row = rows[at]
        is_first = row.case.strategy == "none" or any(row is top_row for top_row in first)
        return 0 if is_first else 1 if row.on_frontier else 2, at

    places = sorted(range(len(rows)), key=rank)[:most]
    return [rows[at] for at in sorted(places)]


def _brief(advice: Advice) -> tuple[str, ...]:
    row, none = advice.chosen, advice.baseline
    if row is None:
        return (MISSING,) * 4
    none_peak = bytes_text(none.readings.peak_bytes if none else None)
    change = MISSING if row is none else ratio_text(row)
    return none_peak, sentence.name(row), bytes_text(row.readings.peak_bytes), change


def _budgets(rows: Sequence[Row], advice: Advice) -> Budgets | None:
    """Return the slider, which stops at every choice, at the advised peak, and evenly over the range of peaks."""
    budget_points = budget_frontier(rows)
    if not budget_points or advice.chosen is None:
        return None
    lowest, advised = budget_points[0].budget_bytes, advice.chosen.readings.peak_bytes or 0
    least, most = int(0.9 * lowest), max(row.readings.peak_bytes or 0 for row in rows if row.outcome == "ok")
    even = {least + (most - least) * at // NUM_STOPS for at in range(NUM_STOPS + 1)}
    stops = sorted(even | {advised} | {stair.budget_bytes for stair in budget_points})
    choices = [
        BudgetChoice(
            case=stair.best.case.id,
            budget_bytes=stair.budget_bytes,
            budget=bytes_text(stair.budget_bytes),
            said=sentence.budget(stair),
        )
        for stair in budget_points
    ]
    return Budgets(
        stops=tuple(stops),
        start=stops.index(advised),
        below=bytes_text(lowest),
        nothing=sentence.no_budget(budget_points[0]),
        choices=tuple(choices),
    )


def _explanation(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a sentence on the parts of each peak, and one on the static memory, below which none can get."""
    texts = [text for row in rows if (text := _explained(row))]
    floors = [row.static_bytes for row in rows if row.outcome == "ok" and row.static_bytes is not None]
    floor = [f"no checkpointing gets below the static memory of {bytes_text(min(floors))}"] if floors else []
    return (*texts, *floor)


def _explained(row: Row) -> str | None:
    parts, readings = peak_parts(row.readings), row.readings
    if row.outcome != "ok" or parts is None:
        return None
    held = [
        f"{bytes_text(parts.static)} static",
        f"{bytes_text(parts.saved)} kept by the forward",
        f"{bytes_text(parts.transient)} transient",
    ]
    where = f" in the {readings.peak_phase}" if readings.peak_phase else ""
    text = f"{sentence.name(row)}: {peak_name(row)} {bytes_text(readings.peak_bytes)}{where}: {', '.join(held)}"
    return "; ".join([text, *_traced(readings)])


def _traced(readings: Readings) -> list[str]:
    """Return what ran at the peak of a traced step, and which modules held the most."""
    timeline = readings.timeline
    if timeline is None or not timeline.modules:
        return []
    at = f"at {timeline.operator} of {module_name(plain(timeline.module or ''))}"
    largest = [f"{module_name(plain(name))} {bytes_text(nbytes)}" for name, nbytes in timeline.modules.items()]
    return [f"{at}; the most is held by {', '.join(largest)}"]
