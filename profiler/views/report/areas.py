"""Layout of the areas of live memory over a step, one picture per strategy; `charts.html` draws them.

A picture is HIGH units high and one unit per point wide, and is stretched to the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from profiler.analysis.live_bytes import CATEGORIES
from profiler.analysis.rows import Row
from profiler.core.record import Timeline
from profiler.core.units import bytes_text
from profiler.views.report.bars import NAMES, line_name
from profiler.views.sanitize import plain
from profiler.views.tables.evidence import peak_name

HIGH = 1000  # units: the height of the highest peak
KINDS = {"workspaces": "static", "recomputed": "rest", "temporaries": "rest", "live": "whole"}  # others keep their name
STACK = (*CATEGORIES, "whole")  # from bottom to top
LEAST = 0.002  # of the highest peak: an area that is nowhere higher is invisible
NARROW = 0.17  # of the width: a phase that is narrower is not named


class Area(msgspec.Struct, frozen=True, kw_only=True):
    """The area of one kind and all below it in the stack; lower ones are drawn over it."""

    kind: str
    path: str


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where a phase begins, in percent of the width; the name is empty if there is no room for it."""

    at: float
    name: str


class AreaPanel(msgspec.Struct, frozen=True, kw_only=True):
    """The picture of one strategy."""

    name: str
    text: str
    said: str
    num_points: int
    areas: tuple[Area, ...]  # the highest first
    phases: tuple[PhaseMark, ...]


class AreaChart(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures on one common scale, with their legend."""

    high: int
    panels: tuple[AreaPanel, ...]
    legend: tuple[tuple[str, str], ...]  # kind, words


def areas(rows: Sequence[Row]) -> AreaChart | None:
    """Return the timelines of these rows; None if none was stored."""
    timelines = [(row, timeline) for row in rows if row.outcome == "ok" and (timeline := row.readings.timeline)]
    if not timelines:
        return None
    stacks = [_stacked(timeline) for _, timeline in timelines]
    highest = max(1, *(max(stack[-1][1]) for stack in stacks))
    panels = [_panel(row, timeline, stack, highest) for (row, timeline), stack in zip(timelines, stacks, strict=True)]
    present = {area.kind for panel in panels for area in panel.areas}
    words = {**NAMES, "whole": "all that is live, kinds not told apart"}
    legend = tuple((kind, words.get(kind, kind)) for kind in STACK if kind in present)
    return AreaChart(high=HIGH, panels=tuple(panels), legend=legend)


def _stacked(timeline: Timeline) -> list[tuple[str, list[int]]]:
    """Return every kind from bottom to top, with the bytes of it and of all below it at every point."""
    sizes: dict[str, list[int]] = {}
    for name, values in timeline.nbytes.items():
        kind = KINDS.get(name, name)
        sizes[kind] = [a + b for a, b in zip(sizes.get(kind, [0] * len(values)), values, strict=True)]
    below, stacked = [0] * max(map(len, sizes.values()), default=1), []
    for kind in (kind for kind in STACK if kind in sizes):
        below = [a + b for a, b in zip(below, sizes[kind], strict=True)]
        stacked.append((kind, below))
    return stacked or [("whole", below)]


def _panel(row: Row, timeline: Timeline, stack: Sequence[tuple[str, Sequence[int]]], highest: int) -> AreaPanel:
    num_points = len(stack[0][1])
    drawn = [
        (kind, tops)
        for (_, bottoms), (kind, tops) in pairwise([("", [0] * num_points), *stack])
        if max(top - bottom for top, bottom in zip(tops, bottoms, strict=True)) >= LEAST * highest
    ]
    name, text = line_name(row), f"{peak_name(row)} {bytes_text(row.readings.peak_bytes)}"
    return AreaPanel(
        name=name,
        text=text,
        said=f"What is live over the step of {name}, {text} in the {plain(row.readings.peak_phase or 'step')}",
        num_points=num_points,
        areas=tuple(Area(kind=kind, path=_path(tops, highest)) for kind, tops in reversed(drawn)),
        phases=_phases(timeline, num_points),
    )


def _path(tops: Sequence[int], highest: int) -> str:
    """Return an SVG path of steps from left to right, one unit per point, closed at the bottom."""
    heights = [round(HIGH * top / highest) for top in tops]
    steps = [f"v{before - height}h1" for before, height in pairwise([0, *heights])]
    return f"M0 {HIGH}{''.join(steps)}V{HIGH}z"


def _phases(timeline: Timeline, num_points: int) -> tuple[PhaseMark, ...]:
    ends = [*(first for _, first in timeline.phases[1:]), num_points]
    return tuple(
        PhaseMark(at=round(100 * first / num_points, 2), name=plain(name) if end - first >= NARROW * num_points else "")
        for (name, first), end in zip(timeline.phases, ends, strict=True)
    )
