"""Bars of memory, one line for each strategy: places and words. Knows nothing of how they are drawn.

Across, places are percents of a width that is not known here; down, they are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.categories import CATEGORIES, categories
from profiler.analysis.rows import Row
from profiler.core.record import PHASES
from profiler.core.units import bytes_text, change_text
from profiler.views.geometry import Scale, around
from profiler.views.sanitize import plain
from profiler.views.tables.explanation import shortened

NAME_LINE, BAR, GAP = 20, 16, 10  # pixels
FULL = 68.0  # percents that the longest bar takes: the rest is for its number
NAME = 40  # letters of a name
NAMES = {
    "optimizer": "optimizer state",
    "static": "other static memory",
    "saved": "saved by the forward",
    "rest": "in transit",
}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a bar, with the name of its colour."""

    x: float
    width: float
    kind: str
    said: str


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, and the number at its end."""

    y: int
    end: float
    text: str
    parts: tuple[Part, ...]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy: its name above its bars."""

    y: int
    name: str
    bars: tuple[Bar, ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of bars, with what each colour means."""

    height: int
    said: str
    legend: tuple[tuple[str, str], ...]  # kind, words
    lines: tuple[Line, ...]


def by_category(rows: Sequence[Row]) -> Bars | None:
    """What the peak of each strategy is made of; None where no peak was measured."""
    shown = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes]
    found = {row.case: categories(row.readings) for row in shown}
    present = {part.name for parts in found.values() for part in parts}
    scale = _scale([row.readings.peak_bytes or 0 for row in shown])
    lines = []
    for number, row in enumerate(shown):
        sizes = [(part.name, part.nbytes) for part in found[row.case]] or [("whole", row.readings.peak_bytes or 0)]
        lines.append(_line(row, number, [_stacked(sizes, scale, _peak_text(row))]))
    legend = [(kind, NAMES.get(kind, kind)) for kind in CATEGORIES if kind in present]
    if any(not parts for parts in found.values()):
        legend.append(("whole", "peak, parts not measured"))
    return _bars(lines, tuple(legend), "Peak memory of each strategy, by category", num_bars=1)


def by_phase(rows: Sequence[Row]) -> Bars | None:
    """The largest number of bytes live in each phase of the step; None where that was not measured."""
    shown = [row for row in rows if row.outcome == "ok" and row.readings.phases]
    peaks = {row.case: {name: one.allocated for name, one in (row.readings.phases or {}).items()} for row in shown}
    scale = _scale([nbytes for one in peaks.values() for nbytes in one.values()])
    lines = [
        _line(
            row,
            number,
            [
                _stacked([(phase, peaks[row.case][phase])], scale, bytes_text(peaks[row.case][phase]))
                for phase in PHASES
                if phase in peaks[row.case]
            ],
            num_bars=len(PHASES),
        )
        for number, row in enumerate(shown)
    ]
    return _bars(lines, tuple((phase, phase) for phase in PHASES), "Peak memory of each phase", num_bars=len(PHASES))


def line_name(row: Row) -> str:
    """A strategy, short enough for the narrowest screen."""
    return shortened(plain(row.case.strategy), NAME)


def _scale(sizes: Sequence[int]) -> Scale:
    return around([float(size) for size in sizes] or [1.0], start=0.0, end=FULL, from_zero=True)


def _line(row: Row, number: int, bars: Sequence[Bar], *, num_bars: int = 1) -> Line:
    y = number * (NAME_LINE + num_bars * BAR + GAP)
    moved = [msgspec.structs.replace(bar, y=y + NAME_LINE + index * BAR) for index, bar in enumerate(bars)]
    return Line(y=y + NAME_LINE - 5, name=line_name(row), bars=tuple(moved))


def _stacked(sizes: Sequence[tuple[str, int]], scale: Scale, text: str) -> Bar:
    parts, left = [], 0
    for kind, nbytes in sizes:
        x = scale.at(left)
        said = f"{NAMES.get(kind, kind)}: {bytes_text(nbytes)}"
        parts.append(Part(x=x, width=round(scale.at(left + nbytes) - x, 2), kind=kind, said=said))
        left += nbytes
    return Bar(y=0, end=scale.at(left), text=text, parts=tuple(parts))


def _bars(lines: Sequence[Line], legend: tuple[tuple[str, str], ...], said: str, *, num_bars: int) -> Bars | None:
    if not lines:
        return None
    height = len(lines) * (NAME_LINE + num_bars * BAR + GAP)
    return Bars(height=height, said=said, legend=legend, lines=tuple(lines))


def _peak_text(row: Row) -> str:
    change = "" if row.peak_ratio is None or row.case.strategy == "none" else f" {change_text(row.peak_ratio)}"
    return f"{bytes_text(row.readings.peak_bytes)}{change}"
