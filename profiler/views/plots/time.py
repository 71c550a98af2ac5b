"""What the step of each strategy takes: forward, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.axes import Axes

from profiler.analysis.rows import Row
from profiler.core.units import scaled, second_unit
from profiler.views.plots.panels import alike
from profiler.views.plots.style import sized
from profiler.views.plots.theme import (
    BLUE,
    FONT,
    GREEN,
    INK,
    ORANGE,
    absent,
    bars_height,
    is_shown,
    legend_square,
    name_axis,
    number_axis,
    plain_axes,
    write_beside,
)
from profiler.views.tables.columns import change
from profiler.views.tables.samples import samples_of

WIDTH, BESIDE = 9.0, False
NEEDS = "a step time"
PARTS = (("forward", BLUE), ("backward", ORANGE), ("optimizer", GREEN))
panels = alike


def has(row: Row) -> bool:
    return is_shown(row) and row.step_seconds is not None


def height(rows: Sequence[Row], width: float) -> float:
    return bars_height(rows)


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draws one bar of medians a row; the dot is the median of the whole step, its line the spread."""
    size, unit = second_unit(row.step_seconds for row in rows if has(row))
    plain_axes(axes, grid="x")
    ends = [_bar(axes, row, at, size) if has(row) else 0.0 for at, row in enumerate(rows)]
    for at, row in enumerate(rows):
        if not has(row):
            absent(axes, row, at)
    for part, colour in PARTS:
        legend_square(axes, part, colour)
    axes.errorbar(
        [],
        [],
        xerr=[],
        fmt="o",
        color=INK,
        markersize=sized(4),
        capsize=sized(3),
        label="step: median and half the interquartile range",
    )
    name_axis(axes, rows)
    number_axis(axes, "x")
    axes.set_xlim(0, 1.2 * max(ends))
    axes.set_xlabel(f"time ({unit})", fontsize=sized(FONT))
    return lambda: None


def _bar(axes: Axes, row: Row, at: int, size: float) -> float:
    """Draws the bar of a row and returns where it ends."""
    left = 0.0
    for part, colour in PARTS:
        samples = samples_of(row, part)
        long = median(samples) / size if samples else 0.0
        axes.barh(at, long, left=left, height=0.72, color=colour)
        left += long
    step = (row.step_seconds or 0) / size
    half = step * (row.step_spread or 0)
    axes.errorbar(step, at, xerr=half, fmt="o", color=INK, markersize=sized(4), capsize=sized(3), linewidth=sized(1.3))
    end = max(left, step + half)
    text = f"{scaled(row.step_seconds, size)}  {change(row, row.time_ratio)}".rstrip()
    write_beside(axes, text, end=end, at=at, gap=7)
    return end
