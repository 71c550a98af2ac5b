"""What the peak of each strategy is made of, and the static memory, the lowest peak checkpointing can reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from profiler.analysis.live_bytes import peak_parts
from profiler.analysis.rows import Row
from profiler.core.units import byte_unit, scaled
from profiler.views.plots.panels import alike
from profiler.views.plots.style import sized
from profiler.views.plots.theme import (
    BLUE,
    FONT,
    GREY,
    INK,
    ORANGE,
    SKY,
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
from profiler.views.tables.evidence import marked

WIDTH, BESIDE = 9.0, False
NEEDS = "a peak"
PARTS = (
    ("static", "static, with gradients", GREY),
    ("saved", "saved by the forward", BLUE),
    ("transient", "transient", ORANGE),
)
panels = alike


def has(row: Row) -> bool:
    return is_shown(row) and row.readings.peak_bytes is not None


def height(rows: Sequence[Row], width: float) -> float:
    return bars_height(rows)


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draws one bar a row, with its peak and the change against `none` beside it."""
    size, unit = byte_unit(row.readings.peak_bytes for row in rows if has(row))
    plain_axes(axes, grid="x")
    for at, row in enumerate(rows):
        _bar(axes, row, at, size) if has(row) else absent(axes, row, at)
    for _, label, colour in PARTS:
        legend_square(axes, label, colour)
    _floor(axes, rows, size)
    name_axis(axes, rows)
    number_axis(axes, "x")
    axes.set_xlim(0, 1.2 * max((row.readings.peak_bytes or 0) / size for row in rows if has(row)))
    axes.set_xlabel(f"{marked('memory at the peak of the step', rows)} ({unit})", fontsize=sized(FONT))
    return lambda: None


def _bar(axes: Axes, row: Row, at: int, size: int) -> None:
    peak = row.readings.peak_bytes or 0
    parts = peak_parts(row.readings)
    left = 0
    for field, _, colour in PARTS if parts else ():
        axes.barh(at, getattr(parts, field) / size, left=left / size, height=0.72, color=colour)
        left += getattr(parts, field)
    if parts is None:
        axes.barh(at, peak / size, height=0.72, color=SKY, label="peak, parts not measured")
    text = f"{scaled(peak, size)}  {change(row, row.peak_ratio)}".rstrip()
    write_beside(axes, text, end=peak / size, at=at, gap=5)


def _floor(axes: Axes, rows: Sequence[Row], size: int) -> None:
    """Draws a short line over each bar at its static memory; equal ones make one long line."""
    floors = [(at, row.static_bytes / size) for at, row in enumerate(rows) if has(row) and row.static_bytes is not None]
    if floors:
        ats, xs = zip(*floors, strict=True)
        axes.vlines(
            xs,
            [at - 0.5 for at in ats],
            [at + 0.5 for at in ats],
            color=INK,
            linewidth=sized(1.6),
            label="floor: all static memory",
        )
