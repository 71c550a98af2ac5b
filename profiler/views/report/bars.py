"""Layout of the memory bars and the sample dots, one line per strategy; `charts.html` draws them.

Horizontal positions are percentages of a width that is not known here; vertical ones are pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

import msgspec

from profiler.analysis.live_bytes import CATEGORIES, categories
from profiler.analysis.rows import Row
from profiler.core.record import PHASES
from profiler.core.strategy_label import strategy_label
from profiler.core.units import bytes_text, count_text, second_unit, seconds_text, spread_text
from profiler.views.geometry import Scale, Tick, around
from profiler.views.sanitize import short
from profiler.views.tables.columns import change
from profiler.views.tables.samples import samples_of

MARGIN = 2.0  # percents
AXIS = 24  # pixels

NAME_LINE, BAR, GAP = 20, 16, 10  # pixels
FULL = 68.0  # percents that the longest bar takes: the rest is for its number
NAME = 40  # characters of a name
NAMES = {
    "optimizer": "optimizer state",
    "static": "other static memory",
    "saved": "saved by the forward",
    "rest": "transient",
}


class BarPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a bar; `kind` selects its color."""

    x: float
    width: float
    kind: str
    said: str


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, and the number at its end."""

    y: int
    end: float
    text: str
    parts: tuple[BarPart, ...]


class BarLine(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy: its name above its bars."""

    y: int
    name: str
    bars: tuple[Bar, ...]


class BarChart(msgspec.Struct, frozen=True, kw_only=True):
    """A bar chart with its legend."""

    height: int
    said: str
    legend: tuple[tuple[str, str], ...]  # kind, words
    lines: tuple[BarLine, ...]


def category_bars(rows: Sequence[Row]) -> BarChart | None:
    """Return the peak of each strategy by category, one bar each; None if no row has a peak."""
    shown = [row for row in rows if row.outcome == "ok" and row.readings.peak_bytes]
    parts_of = {row.case: categories(row.readings) for row in shown}
    present = {part.name for parts in parts_of.values() for part in parts}
    scale = _scale([row.readings.peak_bytes or 0 for row in shown])
    lines = []
    for number, row in enumerate(shown):
        sizes = [(part.name, part.nbytes) for part in parts_of[row.case]] or [("whole", row.readings.peak_bytes or 0)]
        peak = f"{bytes_text(row.readings.peak_bytes)} {change(row, row.peak_ratio)}".rstrip()
        lines.append(_line(row, number, [_stacked(sizes, scale, peak)]))
    legend = [(kind, NAMES.get(kind, kind)) for kind in CATEGORIES if kind in present]
    if any(not parts for parts in parts_of.values()):
        legend.append(("whole", "peak, parts not measured"))
    return _chart(lines, legend, "Peak memory of each strategy, by category", num_bars=1)


def phase_bars(rows: Sequence[Row]) -> BarChart | None:
    """Return the peak of each phase of the step, one bar each; None if that was not measured."""
    shown = [row for row in rows if row.outcome == "ok" and row.readings.phases]
    peaks = [{name: held.allocated for name, held in (row.readings.phases or {}).items()} for row in shown]
    scale = _scale([nbytes for of_row in peaks for nbytes in of_row.values()])
    lines = []
    for number, (row, of_row) in enumerate(zip(shown, peaks, strict=True)):
        sizes = [(phase, of_row[phase]) for phase in PHASES if phase in of_row]
        bars = [_stacked([(phase, nbytes)], scale, bytes_text(nbytes), names={}) for phase, nbytes in sizes]
        lines.append(_line(row, number, bars, num_bars=len(PHASES)))
    return _chart(lines, [(phase, phase) for phase in PHASES], "Peak memory of each phase", num_bars=len(PHASES))


def line_name(row: Row) -> str:
    """Return a strategy, short enough for the narrowest screen."""
    return short(strategy_label(row.case.strategy), NAME)


def _scale(sizes: Sequence[int]) -> Scale:
    return around([float(size) for size in sizes] or [1.0], start=0.0, end=FULL, from_zero=True)


def _line(row: Row, number: int, bars: Sequence[Bar], *, num_bars: int = 1) -> BarLine:
    y = number * (NAME_LINE + num_bars * BAR + GAP)
    moved = [msgspec.structs.replace(bar, y=y + NAME_LINE + index * BAR) for index, bar in enumerate(bars)]
    return BarLine(y=y + NAME_LINE - 5, name=line_name(row), bars=tuple(moved))


def _stacked(sizes: Sequence[tuple[str, int]], scale: Scale, text: str, *, names: Mapping[str, str] = NAMES) -> Bar:
    parts, left = [], 0
    for kind, nbytes in sizes:
        x = scale.at(left)
        words = f"{names.get(kind, kind)}: {bytes_text(nbytes)}"
        parts.append(BarPart(x=x, width=round(scale.at(left + nbytes) - x, 2), kind=kind, said=words))
        left += nbytes
    return Bar(y=0, end=scale.at(left), text=text, parts=tuple(parts))


def _chart(lines: Sequence[BarLine], legend: Sequence[tuple[str, str]], said: str, *, num_bars: int) -> BarChart | None:
    if not lines:
        return None
    height = len(lines) * (NAME_LINE + num_bars * BAR + GAP)
    return BarChart(height=height, said=said, legend=tuple(legend), lines=tuple(lines))


class DotRow(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's samples: one dot each, the median and the quartiles."""

    y: int
    name: str
    text: str
    dots: tuple[tuple[float, float], ...]
    median: float
    low: float  # first quartile
    high: float  # third quartile


class DotRows(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of samples on one common scale."""

    height: int
    said: str
    unit: str
    ticks: tuple[Tick, ...]
    rows: tuple[DotRow, ...]
    num_left_out: int  # dots that are not drawn; the statistics are of all samples


def dot_rows(rows: Sequence[Row], *, most: int) -> DotRows | None:
    """Return every sample of the step, up to `most` dots a strategy; None if no time was sampled."""
    shown = [
        row for row in rows if row.outcome == "ok" and not row.case.has_estimated_times and samples_of(row, "step")
    ]
    if not shown:
        return None
    second, unit = second_unit(seconds for row in shown for seconds in samples_of(row, "step"))
    scale = around(
        (seconds / second for row in shown for seconds in samples_of(row, "step")), start=MARGIN, end=100 - MARGIN
    )
    return DotRows(
        height=len(shown) * (NAME_LINE + BAR + GAP) + AXIS,
        said="Every sample of the step time of each strategy",
        unit=unit,
        ticks=scale.ticks(),
        rows=tuple(_dot_row(row, number, scale, second, most) for number, row in enumerate(shown)),
        num_left_out=sum(max(0, len(samples_of(row, "step")) - most) for row in shown),
    )


def _dot_row(row: Row, number: int, scale: Scale, second: float, most: int) -> DotRow:
    samples = samples_of(row, "step")
    low, middle, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    y = number * (NAME_LINE + BAR + GAP)
    drawn = _thinned(samples, most)
    gap = BAR / max(1, len(drawn) - 1)
    dots = [(scale.at(seconds / second), round(y + NAME_LINE + gap * index, 1)) for index, seconds in enumerate(drawn)]
    return DotRow(
        y=y,
        name=line_name(row),
        text=f"{seconds_text(middle)} {spread_text(row.step_spread)}, {count_text(len(samples), 'sample')}",
        dots=tuple(dots),
        median=scale.at(middle / second),
        low=scale.at(low / second),
        high=scale.at(high / second),
    )


def _thinned(samples: Sequence[float], most: int) -> list[float]:
    """Return at most so many samples: evenly chosen ones, the smallest and the largest, so that the range stays."""
    if len(samples) <= most:
        return list(samples)
    places = {round(at * (len(samples) - 1) / (most - 3)) for at in range(most - 2)}
    places |= {samples.index(min(samples)), samples.index(max(samples))}
    return [samples[at] for at in sorted(places)]
