"""Plots over the settings of a run that vary: heat map and growth of the peak, and throughput over batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, product
from math import nan
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.lines import Line2D

from profiler.analysis.advice import device_memory, holds, samples_per_second, throughput_frontier
from profiler.analysis.axes import exponent, grid, nearest_growth, rising, two
from profiler.analysis.rows import Row
from profiler.core import by_key
from profiler.core.units import byte_unit, bytes_text, scaled
from profiler.views.plots import Plot, batches, curves, theme
from profiler.views.plots.theme import FAINT, FONT, GREY, INK, LINE_COLOURS, VERMILLION, Label, Pair, sized
from profiler.views.sanitize import short
from profiler.views.tables.columns import COUNTED, marked, value_words
from profiler.views.tables.details import planes, space_of

CELL, NAME = 0.5, 0.22  # inches of height: of a cell, and of a name beside lines
DARK = 0.62  # of the shades: beyond it white is read more easily than INK (WCAG 2)
LIMIT = "#111111"
SHADES = (0.06, 0.3, 0.55, 0.8, 0.95)  # blues of falling lightness, distinct in grayscale; neither white nor black
MARKERS = "o^vDPX<>ph"
PROPORTIONAL = "1.00"  # the usual exponent of saved bytes over the batch size: not shown
SMOOTH = 40  # pieces of a dotted curve
LOGARITHMIC = 8  # a memory axis is logarithmic if the largest peak is more than so many times the smallest


def _heat(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw a cell with its peak for each pair of values, and a line between cells that fit the device and others."""
    space = space_of(rows)
    across, up = two(space)
    plane = grid(rows, space, across, up)
    values = product(enumerate(across.values), enumerate(up.values))
    cells = {(x, y): plane.get((x_value, y_value)) for (x, x_value), (y, y_value) in values}
    peaks = [row.readings.peak_bytes or 0 for row in among if row.has_peak]
    size, unit = byte_unit(peaks)
    norm = LogNorm(min(peaks), max(peaks) + 1)  # of all panels
    shades = LinearSegmentedColormap.from_list("peak", colormaps["Blues"](SHADES))
    shown = {at: (row.readings.peak_bytes or 0) if row and row.has_peak else nan for at, row in cells.items()}
    columns, lines = (range(len(axis.values)) for axis in (across, up))
    edges = ([at - 0.5 for at in range(len(places) + 1)] for places in (columns, lines))
    peaks_of_lines = [[shown[x, y] for x in columns] for y in lines]
    axes.pcolormesh(*edges, peaks_of_lines, cmap=shades, norm=norm, edgecolors="white", linewidth=sized(1.2))
    axes.set_facecolor(FAINT)
    for (x, y), row in cells.items():
        if row and row.outcome == "out_of_memory":
            axes.plot(x, y, "x", color=VERMILLION, ms=sized(18), mew=sized(1.6), label="out of memory")
            continue
        text, ink, points = row.outcome.replace("_", " ") if row else "·", GREY, FONT - 2.5
        if row and row.has_peak:
            text, points = scaled(row.readings.peak_bytes, size), FONT - 1
            ink = "white" if norm(shown[x, y]) > DARK else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=sized(points), color=ink)
    fits = {at: holds(row) for at, row in cells.items() if row}
    device_bytes = device_memory(list(plane.values()))
    memory = "" if device_bytes is None else f": {bytes_text(device_bytes)}"
    more = f", {COUNTED}" if any(row.case.is_predicted for row in rows) else ""  # by reserved bytes, not by the peak
    look = {"color": LIMIT, "linewidth": sized(2.6), "label": f"memory of the device{memory}{more}", "zorder": 5}
    for (x, y), (right, above) in product(fits, ((1, 0), (0, 1))):  # the edge of a cell beside its neighbor
        if {fits[x, y], fits.get((x + right, y + above))} == {True, False}:
            edge = (x + right - 0.5, x + 0.5), (y + above - 0.5, y + 0.5)
            axes.plot(*edge, solid_capstyle="round", **look)  # type: ignore[arg-type]
    xs, ys = ([short(word, theme.LONGEST_NAME) for word in value_words(axis, rows)] for axis in (across, up))
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    ends = -0.5, len(ys) - 0.5  # numbers rise upwards, words go down from the first
    axes.set(xlim=(-0.5, len(xs) - 0.5), ylim=ends if up.is_number else ends[::-1])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if up.is_number:
        axes.set_ylabel(up.label)
    axes.set_xlabel(f"{across.label}\nin the cells: {marked('peak memory', rows)} ({unit})")


class StrategyLine(NamedTuple):
    """The rows of one strategy, and how they are drawn. Markers tell lines apart in grayscale and beyond six colors."""

    rows: list[Row]
    colour: str
    marker: str

    def draw(self, axes: Axes, points: Sequence[Pair], *, hollow: Sequence[Pair] = ()) -> Line2D:
        """Draw a line and its points, and return it; those that are also in `hollow` are drawn hollow."""
        shape: dict[str, Any] = {"marker": self.marker, "markersize": sized(6), "color": self.colour}
        if hollow:
            axes.plot(*zip(*hollow, strict=True), **shape, mfc="white", mew=sized(1.3), linestyle="none", zorder=5)
        look: dict[str, Any] = {"mec": "white", "mew": sized(0.7), "linewidth": sized(1.5), "zorder": 4}
        return axes.plot(*zip(*points, strict=True), **shape, **look)[0]


def of_strategies(rows: Sequence[Row]) -> list[StrategyLine]:
    """Return one line per strategy, `none` first."""
    by_strategy = by_key((row.case.label, row) for row in sorted(rows, key=lambda row: row.case.label != "none"))
    looks = zip(cycle(LINE_COLOURS), cycle(MARKERS), strict=False)
    return [
        StrategyLine(of_it, *((INK, "s") if label == "none" else next(looks))) for label, of_it in by_strategy.items()
    ]


def _named(axes: Axes, ends: Sequence[tuple[float, str, Line2D]]) -> None:
    """Name the lines, given with the heights of their ends, within the axes where there is most room."""
    _, names, lines = zip(*sorted(ends, key=itemgetter(0), reverse=True), strict=True)
    axes.legend(lines, names, frameon=True, edgecolor="none", fontsize=sized(FONT - 1.5))


def _growth(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one line per strategy on logarithmic axes, and dotted its best fit (constant plus n or 1/n, or a power)."""
    space = space_of(rows)
    axis = rising(space)
    size_of = {row.case: float(space.settings[row.case][axis.name] or 0) for row in rows}
    shown = [row for row in rows if row.has_peak]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    ends, heights = list[tuple[float, str, Line2D]](), list[float]()
    for line in of_strategies(shown):
        points = sorted((size_of[row.case], (row.readings.peak_bytes or 0) / size) for row in line.rows)
        name = theme.name(line.rows[0]) + _fit(axes, line, size_of, size)
        ends.append((points[-1][1], name, line.draw(axes, points)))
        heights += [y for _, y in points]
    static = {size_of[row.case]: sum((row.readings.static_bytes or {}).values()) / size for row in shown}
    floor = sorted((x, y) for x, y in static.items() if y)
    if axis.name == "ranks" and floor:  # checkpointing does not change static bytes, and ranks may shard them
        axes.plot(*zip(*floor, strict=True), color=INK, linestyle="-.", linewidth=sized(1.4), label="static bytes")
        heights += [y for _, y in floor]
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(min(heights) / 1.4, max(heights) * 1.6)
    theme.log_axis(axes.yaxis)
    axes.minorticks_off()
    axes.set_xticks([float(value or 0) for value in axis.values], [f"{value:g}" for value in axis.values])
    top = axes.get_ylim()[1] / 1.12
    for x in {size_of[row.case] for row in rows if row.outcome == "out_of_memory"}:  # which have no peak
        axes.scatter(x, top, s=theme.area(52), color=VERMILLION, marker="x", label="out of memory", linewidths=sized(2))
    theme.limit(axes, rows, size, upright=False)
    axes.plot([], [], color=GREY, linestyle=":", linewidth=sized(1.2), label="nearest growth, at the name")
    _named(axes, ends)
    axes.set_xlabel(f"{axis.label} (n)")
    axes.set_ylabel(f"{marked('peak memory', rows)} ({unit})")


def _fit(axes: Axes, line: StrategyLine, size_of: dict[Any, float], size: int) -> str:
    """Draw the best fit of a strategy, if three points or more have one, and return it in words."""
    sizes = [size_of[row.case] for row in line.rows]
    peaks = [(row.readings.peak_bytes or 0) / size for row in line.rows]
    growth, saved = nearest_growth(sizes, peaks), exponent(sizes, [row.readings.saved_bytes or 0 for row in line.rows])
    if growth is None:
        return ""
    low, high = min(sizes), max(sizes)
    steps = [low * (high / low) ** (step / SMOOTH) for step in range(SMOOTH + 1)]
    heights = [max(growth.at(x), min(peaks) / 10) for x in steps]
    axes.plot(steps, heights, color=line.colour, linestyle=":", linewidth=sized(1.2), alpha=0.7, zorder=3)
    kept = "" if saved is None or f"{saved:.2f}" == PROPORTIONAL else f" (saved n^{saved:.2f})"
    return f": {growth.text()}{kept}"


def _throughput(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one line per strategy through its batch sizes, and a step line of the best throughput at each memory."""
    shown = [row for row in rows if THROUGHPUT.has(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)

    def at(row: Row) -> Pair:
        return (row.readings.peak_bytes or 0) / size, samples_per_second(row) or 0.0

    lines = [line._replace(rows=sorted(line.rows, key=at)) for line in of_strategies(shown)]
    drawn, ends = [[at(row) for row in line.rows] for line in lines], list[tuple[float, str, Line2D]]()
    for line, points in zip(lines, drawn, strict=True):
        hollow = [at(row) for row in line.rows if holds(row) is False]
        ends.append((points[-1][1], theme.name(line.rows[0]), line.draw(axes, points, hollow=hollow)))
    if any(holds(row) is False for row in shown):
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label=f"hollow: does not fit, {COUNTED}")
    axes.margins(x=0.08, y=0.12)
    theme.number_axis(axes.yaxis)
    peaks = [peak for peak, _ in map(at, shown)]
    if max(peaks) > LOGARITHMIC * min(peaks):  # they are far apart
        axes.set_xscale("log")
        theme.log_axis(axes.xaxis)
    else:
        theme.number_axis(axes.xaxis)
    best = throughput_frontier(shown)
    if best:
        points = [at(row) for row in best]
        corners = theme.stairs([*points, (axes.get_xlim()[1], points[-1][1])])
        look = {"color": GREY, "alpha": 0.3, "zorder": 2, "label": "most samples a second up to this peak"}
        axes.plot(*zip(*corners, strict=True), linewidth=sized(5), **look)  # type: ignore[arg-type]
        drawn.append(corners)
    drawn.append(theme.limit(axes, rows, size, upright=True))
    axes.set_xlabel(f"{marked('peak memory', rows)} ({unit}); at the marks: batch size")
    axes.set_ylabel("samples a second")
    _named(axes, ends)
    ordered = sorted(shown, key=lambda row: row not in best)
    labels = [Label(*at(row), str(row.case.batch_size), must=False) for row in ordered]
    return lambda: theme.place(axes, labels, others=[at(row) for row in shown], lines=drawn)


HEAT = Plot(
    panels=planes,
    has=attrgetter("has_peak"),
    height=lambda rows, width: 2.1 + CELL * len(two(space_of(rows))[1].values),
    draw=_heat,
    needs="a peak",
    is_beside=True,
)
_line_plot = partial(
    Plot,
    height=lambda rows, width: max(1.5 + 0.5 * width, 1.9 + NAME * len({row.case.label for row in rows})),
    is_beside=True,
)
GROWTH = _line_plot(panels=curves, has=attrgetter("has_peak"), draw=_growth, needs="a peak")
THROUGHPUT = _line_plot(
    panels=batches,
    has=lambda row: row.has_peak and samples_per_second(row) is not None,
    draw=_throughput,
    needs="a peak, a step time and a size of the batch",
)
