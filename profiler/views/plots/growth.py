"""Plot of how the peak of each strategy grows with the batch size, or with another numeric setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from matplotlib.axes import Axes

from profiler.analysis.axes import rising
from profiler.analysis.growth_fit import Growth, exponent, nearest_growth
from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.strategy_label import strategy_label
from profiler.core.units import byte_unit
from profiler.views.geometry import Pair
from profiler.views.plots import strategy_lines
from profiler.views.plots.labels import Label, line_end_share, place_at_line_ends
from profiler.views.plots.panels import Plot, curves, space_of
from profiler.views.plots.strategy_lines import StrategyLine
from profiler.views.plots.style import sized
from profiler.views.plots.theme import FONT, GREY, INK, VERMILLION, area, has_peak, log_axis, plain_axes, shortened
from profiler.views.tables.evidence import marked

PROPORTIONAL = "1.00"  # the usual exponent of saved bytes over the batch size: not shown
SMOOTH = 40  # pieces of a dotted curve
RANKS = "ranks"  # an axis over which static bytes change
NAME = 0.42  # inches of height for a name with its growth


class GrowthCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One line, its points from left to right, and the label at its end."""

    line: StrategyLine
    points: list[Pair]
    growth: Growth | None  # the best fit; None for fewer than three points
    text: str


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one line per strategy on logarithmic axes, and dotted its best fit (constant plus n or 1/n, or a power)."""
    space = space_of(rows)
    axis = rising(space)
    size_of = {row.case: float(space.settings[row.case][axis.name] or 0) for row in rows}
    size, unit = byte_unit(row.readings.peak_bytes for row in rows if has_peak(row))
    grown = [
        _curve(line, size_of, size) for line in strategy_lines.of_strategies([row for row in rows if has_peak(row)])
    ]
    plain_axes(axes)
    for curve in grown:
        strategy_lines.draw(axes, curve.line, curve.points)
        _fit(axes, curve)
    static = _static(rows, size_of, size) if axis.name == RANKS else []
    if static:
        axes.plot(*zip(*static, strict=True), color=INK, linestyle="-.", linewidth=sized(1.4), label="static bytes")
    _limits(axes, grown, [height for _, height in static])
    axes.set_xticks([float(value or 0) for value in axis.values], [f"{value:g}" for value in axis.values])
    _crosses(axes, [size_of[row.case] for row in rows if row.outcome == "out_of_memory"])
    strategy_lines.limit(axes, rows, size, upright=False)
    axes.plot([], [], color=GREY, linestyle=":", linewidth=sized(1.2), label="nearest growth, at the name")
    axes.set_xlabel(f"{axis.label} (n)", fontsize=sized(FONT))
    axes.set_ylabel(f"{marked('peak memory', rows)} ({unit})", fontsize=sized(FONT))
    labels = [Label(x=curve.points[-1][0], y=curve.points[-1][1], text=curve.text) for curve in grown]
    return lambda: place_at_line_ends(axes, labels)


def _curve(line: StrategyLine, size_of: dict[Case, float], size: int) -> GrowthCurve:
    """Return the line of a strategy, labeled with the growth of its peak and the exponent of its saved bytes."""
    sizes = [size_of[row.case] for row in line.rows]
    peaks = [(row.readings.peak_bytes or 0) / size for row in line.rows]
    growth, saved = nearest_growth(sizes, peaks), exponent(sizes, [row.readings.saved_bytes or 0 for row in line.rows])
    kept = "" if saved is None or f"{saved:.2f}" == PROPORTIONAL else f" (saved n^{saved:.2f})"
    words = "" if growth is None else f"\n{growth.text()}{kept}"
    name = shortened(strategy_label(line.strategy))
    return GrowthCurve(line=line, points=sorted(zip(sizes, peaks, strict=True)), growth=growth, text=name + words)


def _fit(axes: Axes, curve: GrowthCurve) -> None:
    """Draw the best fit over the width of the curve."""
    xs, ys = zip(*curve.points, strict=True)
    growth = curve.growth
    if growth is None:
        return
    steps = [xs[0] * (xs[-1] / xs[0]) ** (step / SMOOTH) for step in range(SMOOTH + 1)]
    heights = [max(growth.at(x), min(ys) / 10) for x in steps]
    axes.plot(steps, heights, color=curve.line.colour, linestyle=":", linewidth=sized(1.2), alpha=0.7, zorder=3)


def _static(rows: Sequence[Row], size_of: dict[Case, float], size: int) -> list[Pair]:
    """Return the static bytes at every size: checkpointing does not change them, and ranks may shard them."""
    static_bytes = {
        size_of[row.case]: sum((row.readings.static_bytes or {}).values()) / size for row in rows if has_peak(row)
    }
    return sorted((x, y) for x, y in static_bytes.items() if y)


def _limits(axes: Axes, curves: Sequence[GrowthCurve], heights: Sequence[float]) -> None:
    """Sets the limits, with room on the right for the labels."""
    xs, ys = zip(*(point for curve in curves for point in curve.points), strict=True)
    ys = (*ys, *heights)
    wide = (max(xs) / min(xs)) ** (1 / (0.94 - line_end_share(axes, [curve.text for curve in curves])))
    axes.set(xscale="log", yscale="log", xlim=(min(xs) / wide**0.06, min(xs) * wide**0.94))
    axes.set_ylim(min(ys) / 1.4, max(ys) * 1.6)
    log_axis(axes.yaxis)
    axes.minorticks_off()


def _crosses(axes: Axes, xs: Sequence[float]) -> None:
    """Draw crosses along the top at sizes that ran out of memory and so have no peak."""
    top = axes.get_ylim()[1] / 1.12
    for x in sorted(set(xs)):
        axes.scatter(x, top, s=area(52), color=VERMILLION, marker="x", label="out of memory", linewidths=sized(2))


PLOT = Plot(
    panels=curves,
    has=has_peak,
    height=lambda rows, width: max(1.35 + 0.5 * width, 1.9 + NAME * len({row.case.strategy for row in rows})),
    draw=draw,
    needs="a peak",
    is_beside=True,
)
