"""Bar plots with one row per strategy: the parts of its peak, the phases of its step, and every time sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.axes import Axes

from profiler.analysis.live_bytes import peak_parts
from profiler.analysis.rows import Row
from profiler.core.units import byte_unit, scaled, second_unit
from profiler.views.plots import theme
from profiler.views.plots.panels import Plot, alike
from profiler.views.plots.style import sized
from profiler.views.plots.theme import BLUE, FONT, GREEN, GREY, INK, ORANGE, SKY, has_peak, is_shown
from profiler.views.tables.columns import change
from profiler.views.tables.evidence import marked, outcome
from profiler.views.tables.samples import samples_of

WIDTH = 9.0  # inches
BAR_INCHES, CROWDED_BAR_INCHES, CROWD = 0.36, 0.26, 14  # a bar with its gap; the smaller one for more than CROWD bars
THICK = 0.72  # of the height for a bar and its gap
MEMORY_PARTS = (
    ("static", "static, with gradients", GREY),
    ("saved", "saved by the forward", BLUE),
    ("transient", "transient", ORANGE),
)
TIME_PARTS = (("forward", BLUE), ("backward", ORANGE), ("optimizer", GREEN))
BAND = 0.3  # half the height over which the samples of a row are laid out


def _memory(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one bar per row, with its peak and the change against `none` beside it."""
    size, unit = byte_unit(row.readings.peak_bytes for row in rows if has_peak(row))
    theme.plain_axes(axes, grid="x")
    for at, row in enumerate(rows):
        _memory_bar(axes, row, at, size) if has_peak(row) else _absent(axes, row, at)
    for _, label, colour in MEMORY_PARTS:
        theme.legend_square(axes, label, colour)
    _floor(axes, rows, size)
    axes.set_xlim(0, 1.2 * max((row.readings.peak_bytes or 0) / size for row in rows if has_peak(row)))
    return _named(axes, rows, f"{marked('memory at the peak of the step', rows)} ({unit})")


def _memory_bar(axes: Axes, row: Row, at: int, size: int) -> None:
    peak = row.readings.peak_bytes or 0
    parts = peak_parts(row.readings)
    left = 0
    for field, _, colour in MEMORY_PARTS if parts else ():
        axes.barh(at, getattr(parts, field) / size, left=left / size, height=THICK, color=colour)
        left += getattr(parts, field)
    if parts is None:
        axes.barh(at, peak / size, height=THICK, color=SKY, label="peak, parts not measured")
    text = f"{scaled(peak, size)}  {change(row, row.peak_ratio)}".rstrip()
    theme.note(axes, text, (peak / size, at), offset=(5, 0), va="center")


def _floor(axes: Axes, rows: Sequence[Row], size: int) -> None:
    """Draw a short line over each bar at its static memory; equal ones make one long line."""
    floors = [
        (at, row.static_bytes / size) for at, row in enumerate(rows) if has_peak(row) and row.static_bytes is not None
    ]
    if floors:
        ats, xs = zip(*floors, strict=True)
        low, high = [at - 0.5 for at in ats], [at + 0.5 for at in ats]
        axes.vlines(xs, low, high, color=INK, linewidth=sized(1.6), label="floor: all static memory")


def _has_time(row: Row) -> bool:
    return is_shown(row) and row.step_seconds is not None


def _time(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one bar per row, made of the phases' medians; a dot and its error bar are the step's median and spread."""
    size, unit = second_unit(row.step_seconds for row in rows if _has_time(row))
    theme.plain_axes(axes, grid="x")
    ends = [_time_bar(axes, row, at, size) if _has_time(row) else 0.0 for at, row in enumerate(rows)]
    for at, row in enumerate(rows):
        if not _has_time(row):
            _absent(axes, row, at)
    for part, colour in TIME_PARTS:
        theme.legend_square(axes, part, colour)
    label = "step: median and half the interquartile range"
    axes.errorbar([], [], xerr=[], fmt="o", color=INK, markersize=sized(4), capsize=sized(3), label=label)
    axes.set_xlim(0, 1.2 * max(ends))
    return _named(axes, rows, f"time ({unit})")


def _time_bar(axes: Axes, row: Row, at: int, size: float) -> float:
    """Draw the bar of a row and return where it ends."""
    left = 0.0
    for part, colour in TIME_PARTS:
        samples = samples_of(row, part)
        long = median(samples) / size if samples else 0.0
        axes.barh(at, long, left=left, height=THICK, color=colour)
        left += long
    step = (row.step_seconds or 0) / size
    half = step * (row.step_spread or 0)
    axes.errorbar(step, at, xerr=half, fmt="o", color=INK, markersize=sized(4), capsize=sized(3), linewidth=sized(1.3))
    end = max(left, step + half)
    text = f"{scaled(row.step_seconds, size)}  {change(row, row.time_ratio)}".rstrip()
    theme.note(axes, text, (end, at), offset=(7, 0), va="center")
    return end


def _has_samples(row: Row) -> bool:
    return is_shown(row) and bool(samples_of(row, "step"))


def _samples(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one dot per sample, the first on top, and a line at the median."""
    seconds = [second for row in rows if _has_samples(row) for second in samples_of(row, "step")]
    size, unit = second_unit(seconds)
    low, high = min(seconds) / size, max(seconds) / size
    margin = 0.06 * (high - low) or 0.05 * high or 1
    theme.plain_axes(axes, grid="x")
    axes.set_xlim(low - margin, high + margin)
    for at, row in enumerate(rows):
        _dots(axes, row, at, size) if _has_samples(row) else _absent(axes, row, at)
    axes.scatter([], [], s=theme.area(22), color=BLUE, label="one step (the first on top, the rounds in order)")
    axes.plot([], [], color=INK, linewidth=sized(2), label="median")
    return _named(axes, rows, f"step time ({unit})")


def _dots(axes: Axes, row: Row, at: int, size: float) -> None:
    samples = samples_of(row, "step")
    gap = 2 * BAND / max(1, len(samples) - 1)
    ys = [at - BAND + gap * index if len(samples) > 1 else at for index in range(len(samples))]
    axes.scatter(
        [sample / size for sample in samples], ys, s=theme.area(22), color=BLUE, alpha=0.8, linewidths=0, zorder=3
    )
    middle = (row.step_seconds or 0) / size
    axes.vlines(middle, at - BAND - 0.1, at + BAND + 0.1, color=INK, linewidth=sized(2), zorder=2)


def _absent(axes: Axes, row: Row, at: int) -> None:
    """Write why a row has no bar."""
    text = outcome(row) if row.outcome != "ok" else "not measured"
    where = ("axes fraction", "data")
    theme.note(axes, text, (0, at), offset=(5, 0), color=GREY, xycoords=where, va="center", style="italic")


def _named(axes: Axes, rows: Sequence[Row], label: str) -> Callable[[], object]:
    """Labels the axes: values across, strategies down, the first on top. Returns a finisher that does nothing."""
    axes.set_yticks(range(len(rows)), [theme.name(row) for row in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    theme.number_axis(axes.xaxis)
    axes.set_xlabel(label, fontsize=sized(FONT))
    return lambda: None


def _height(rows: Sequence[Row], width: float) -> float:
    """Return the height in inches of a panel with one bar per row."""
    return 1.9 + len(rows) * (BAR_INCHES if len(rows) <= CROWD else CROWDED_BAR_INCHES)


MEMORY = Plot(panels=alike, has=has_peak, height=_height, draw=_memory, needs="a peak", width=WIDTH)
TIME = Plot(panels=alike, has=_has_time, height=_height, draw=_time, needs="a step time", width=WIDTH)
SAMPLES = Plot(
    panels=alike,
    has=_has_samples,
    height=lambda rows, width: 1.2 * _height(rows, width),
    draw=_samples,
    needs="a step time",
    width=WIDTH,
)
