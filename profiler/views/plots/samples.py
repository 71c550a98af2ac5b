"""Every raw sample of the step: drift, outliers and noise as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from profiler.analysis.rows import Row
from profiler.core.units import second_unit
from profiler.views.plots.panels import alike
from profiler.views.plots.style import sized
from profiler.views.plots.theme import (
    BLUE,
    FONT,
    INK,
    absent,
    area,
    bars_height,
    is_shown,
    name_axis,
    number_axis,
    plain_axes,
)
from profiler.views.tables.samples import samples_of

WIDTH, BESIDE = 9.0, False
NEEDS = "a step time"
BAND = 0.3  # half the height over which the samples of a row are laid out
panels = alike


def has(row: Row) -> bool:
    return is_shown(row) and bool(samples_of(row, "step"))


def height(rows: Sequence[Row], width: float) -> float:
    return 1.2 * bars_height(rows)


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draws a dot a sample, the first on top; the line is the median."""
    seconds = [second for row in rows if has(row) for second in samples_of(row, "step")]
    size, unit = second_unit(seconds)
    low, high = min(seconds) / size, max(seconds) / size
    margin = 0.06 * (high - low) or 0.05 * high or 1
    plain_axes(axes, grid="x")
    axes.set_xlim(low - margin, high + margin)
    for at, row in enumerate(rows):
        if has(row):
            _dots(axes, row, at, size)
        else:
            absent(axes, row, at)
    axes.scatter([], [], s=area(22), color=BLUE, label="one step (the first on top, the rounds in order)")
    axes.plot([], [], color=INK, linewidth=sized(2), label="median")
    name_axis(axes, rows)
    number_axis(axes, "x")
    axes.set_xlabel(f"step time ({unit})", fontsize=sized(FONT))
    return lambda: None


def _dots(axes: Axes, row: Row, at: int, size: float) -> None:
    samples = samples_of(row, "step")
    gap = 2 * BAND / max(1, len(samples) - 1)
    ys = [at - BAND + gap * index if len(samples) > 1 else at for index in range(len(samples))]
    axes.scatter([sample / size for sample in samples], ys, s=area(22), color=BLUE, alpha=0.8, linewidths=0, zorder=3)
    axes.vlines(
        (row.step_seconds or 0) / size, at - BAND - 0.1, at + BAND + 0.1, color=INK, linewidth=sized(2), zorder=2
    )
