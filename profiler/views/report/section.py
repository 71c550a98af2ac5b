"""The contents of a section of the report, which shows one group of rows, for the template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from profiler.analysis.advice import Advice, advise, budget_frontier
from profiler.analysis.live_bytes import peak_parts
from profiler.analysis.rows import Row
from profiler.core.record import Readings
from profiler.core.units import MISSING, bytes_text
from profiler.views.report import grids, pictures, sentence
from profiler.views.report.grids import Twins
from profiler.views.sanitize import plain, short, shortened
from profiler.views.tables.columns import group_table, heading, ratio_text, reasons
from profiler.views.tables.evidence import peak_name
from profiler.views.tables.explanation import module_name

LONGEST_REASON, LONGEST_TITLE = 300, 240  # letters
NUM_STOPS = 40  # of the slider, evenly spaced, besides those at the choices


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the runs is shown, so that the page stays small and is soon made."""

    sections: int
    drawn: int  # sections with all pictures
    frontiers: int  # sections with a picture of the frontier
    rows: int  # of a section: in its table and its picture
    lines: int  # of a picture with one line a strategy
    samples: int  # of a strategy
    timelines: int  # of a section


def section(rows: Sequence[Row], *, twins: Twins, anchor: str, limits: PageLimits, number: int) -> dict[str, Any]:
    """Return all that is shown of one group of rows; `twins` are those of all groups of the run.

    `number` counts the sections of the page: those beyond the limits have no pictures.
    """
    advice = advise(rows)
    shown, drawn = chosen(rows, advice, limits.rows), chosen(rows, advice, limits.lines)
    traced = chosen([row for row in rows if row.readings.timeline], advice, limits.timelines)
    is_drawn = number < limits.drawn
    return {
        "anchor": anchor,
        "title": short(heading(rows), LONGEST_TITLE),
        "evidence": rows[0].evidence,
        "sentence": sentence.sentence(advice, rows),
        "brief": _brief(advice),
        "is_drawn": is_drawn,
        "frontier": pictures.frontier(shown, anchor) if number < limits.frontiers else None,
        "memory": pictures.memory(drawn, anchor) if is_drawn else None,
        "timelines": pictures.timelines(traced, anchor) if is_drawn else None,
        "dots": pictures.samples(drawn, anchor) if is_drawn else None,
        "budgets": _budgets(rows, advice),
        "table": msgspec.structs.replace(group_table(shown, is_bare=True), title="Every strategy"),
        "num_left_out": len(rows) - len(shown),
        "reasons": [plain(shortened(text, LONGEST_REASON)) for text in reasons(shown)],
        "phases": grids.phases(drawn),
        "explanation": _explanation(drawn),
        "predictions": grids.predictions(drawn, twins=twins, most=limits.rows),
        "equality": grids.equality(drawn),
        "samples": grids.samples(drawn, most=limits.samples),
        "environments": grids.environments(rows),
        "remarks": grids.remarks(shown),
    }


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
    """Return the peak of none, the advised strategy, its peak, and its time against none."""
    row, none = advice.chosen, advice.baseline
    if row is None:
        return (MISSING,) * 4
    none_peak = bytes_text(none.readings.peak_bytes if none else None)
    change = MISSING if row is none else ratio_text(row)
    return none_peak, sentence.name(row), bytes_text(row.readings.peak_bytes), change


def _budgets(rows: Sequence[Row], advice: Advice) -> dict[str, Any] | None:
    """Return the slider, which stops at every choice, at the advised peak, and evenly over the range of peaks."""
    budget_points = budget_frontier(rows)
    if not budget_points or advice.chosen is None:
        return None
    lowest, advised = budget_points[0].budget_bytes, advice.chosen.readings.peak_bytes or 0
    least, most = int(0.9 * lowest), max(row.readings.peak_bytes or 0 for row in rows if row.outcome == "ok")
    even = {least + (most - least) * at // NUM_STOPS for at in range(NUM_STOPS + 1)}
    stops = sorted(even | {advised} | {stair.budget_bytes for stair in budget_points})
    choices = [
        {"case": stair.best.case.id, "budget_bytes": stair.budget_bytes, "said": sentence.budget(stair)}
        for stair in budget_points
    ]
    nothing = sentence.no_budget(budget_points[0])
    return {"stops": stops, "start": stops.index(advised), "nothing": nothing, "choices": choices}


def _explanation(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the parts of each peak, and one on the static memory, below which none can get."""
    texts = [text for row in rows if (text := _explained(row))]
    floors = [row.static_bytes for row in rows if row.outcome == "ok" and row.static_bytes is not None]
    floor = [f"no checkpointing gets below the static memory of {bytes_text(min(floors))}"] if floors else []
    return [*texts, *floor]


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
