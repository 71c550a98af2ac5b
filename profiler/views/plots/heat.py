"""Heat map of the peak over two axes, with a line where the device's memory ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.typing import ColorType

from profiler.analysis.axes import Axis, Value, grid, two
from profiler.analysis.memory_fit import device_memory, holds
from profiler.analysis.rows import Row
from profiler.core.units import byte_unit, bytes_text, scaled
from profiler.views.plots.panels import Plot, planes, space_of
from profiler.views.plots.theme import FAINT, FONT, GREY, INK, VERMILLION, has_peak, shortened, sized
from profiler.views.tables.columns import COUNTED
from profiler.views.tables.evidence import marked, value_words

CELL = 0.5  # inches of height
DARK = 0.213  # relative luminance: below it white is read more easily than INK (WCAG 2)
LIMIT = "#111111"
SHADES = (0.06, 0.3, 0.55, 0.8, 0.95)  # blues of falling lightness, distinct in grayscale; neither white nor black
Plane = Mapping[tuple[Value, Value], Row]


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw a cell with its peak for each pair of values, and a line between cells that fit the device and others.

    All panels share one color scale.
    """
    space = space_of(rows)
    across, up = two(space)
    plane = grid(rows, space, across, up)
    peaks = [row.readings.peak_bytes or 0 for row in among if has_peak(row)]
    size, unit = byte_unit(peaks)
    norm = LogNorm(min(peaks), max(peaks) + 1)
    colours = LinearSegmentedColormap.from_list("peak", colormaps["Blues"](SHADES))
    for (x, x_value), (y, y_value) in product(enumerate(across.values), enumerate(up.values)):
        row = plane.get((x_value, y_value))
        shade = float(norm(row.readings.peak_bytes or 0)) if row and has_peak(row) else None
        _cell(axes, row, (x, y), size=size, shade=shade, colours=colours)
    _limit(axes, plane, across, up)
    _name_axes(axes, rows, across, up)
    axes.set_xlabel(f"{across.label}\nin the cells: {marked('peak memory', rows)} ({unit})")


def _cell(
    axes: Axes, row: Row | None, at: tuple[int, int], *, size: int, shade: float | None, colours: Colormap
) -> None:
    """Draw one cell: its peak, else its outcome as a word; a cross for out of memory; white if nothing ran."""
    x, y = at
    colour = "white" if row is None else FAINT if shade is None else colours(shade)
    axes.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, color=colour, edgecolor="white", linewidth=sized(1.2))
    if row is not None and row.outcome == "out_of_memory":
        for ends in ([y - 0.3, y + 0.3], [y + 0.3, y - 0.3]):
            axes.plot([x - 0.3, x + 0.3], ends, color=VERMILLION, linewidth=sized(1.6), label="out of memory")
        return
    is_number = row is not None and shade is not None
    text = scaled(row.readings.peak_bytes, size) if row and is_number else row.outcome.replace("_", " ") if row else "·"
    ink = GREY if not is_number else "white" if luminance(colour) < DARK else INK
    axes.text(x, y, text, ha="center", va="center", fontsize=sized(FONT - (1 if is_number else 2.5)), color=ink)


def luminance(colour: ColorType) -> float:
    """Return the relative luminance by WCAG 2: 0 is black, 1 is white."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return float(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])


def _limit(axes: Axes, plane: Plane, across: Axis, up: Axis) -> None:
    """Draw a line along every edge between a cell that fits and one that does not."""
    lies = {
        (x, y): holds(plane[x_value, y_value])
        for (x, x_value), (y, y_value) in product(enumerate(across.values), enumerate(up.values))
        if (x_value, y_value) in plane
    }
    edges = [
        ((x + 0.5, x + 0.5), (y - 0.5, y + 0.5)) if right else ((x - 0.5, x + 0.5), (y + 0.5, y + 0.5))
        for (x, y), fits in lies.items()
        for right in (True, False)
        if {fits, lies.get((x + 1, y) if right else (x, y + 1))} == {True, False}
    ]
    rows = list(plane.values())
    device_bytes = device_memory(rows)
    size = "" if device_bytes is None else f": {bytes_text(device_bytes)}"
    more = f", {COUNTED}" if any(row.case.is_predicted for row in rows) else ""  # by reserved bytes, not by the peak
    label = f"memory of the device{size}{more}"
    for xs, ys in edges:
        axes.plot(xs, ys, color=LIMIT, linewidth=sized(2.6), solid_capstyle="round", label=label, zorder=5)


def _name_axes(axes: Axes, rows: Sequence[Row], across: Axis, up: Axis) -> None:
    """Labels the axes with their values; numbers rise upwards, words go down from the first."""
    xs, ys = ([shortened(word) for word in value_words(axis, rows)] for axis in (across, up))
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    ends = -0.5, len(up.values) - 0.5
    axes.set(xlim=(-0.5, len(across.values) - 0.5), ylim=ends if up.is_number else ends[::-1])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if up.is_number:
        axes.set_ylabel(up.label)


PLOT = Plot(
    panels=planes,
    has=has_peak,
    height=lambda rows, width: 2.1 + CELL * len(two(space_of(rows))[1].values),
    draw=draw,
    needs="a peak",
    is_beside=True,
)
