"""Plot of throughput (samples per second) against peak memory, by strategy and batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from profiler.analysis.memory_fit import holds, samples_per_second, throughput_frontier
from profiler.analysis.rows import Row
from profiler.core.strategy_label import strategy_label
from profiler.core.units import byte_unit
from profiler.views import geometry
from profiler.views.geometry import Pair
from profiler.views.plots import strategy_lines
from profiler.views.plots.labels import Label, line_end_share, place
from profiler.views.plots.panels import Plot, batches
from profiler.views.plots.strategy_lines import StrategyLine
from profiler.views.plots.style import sized
from profiler.views.plots.theme import FONT, GREY, is_shown, log_axis, number_axis, plain_axes, shortened
from profiler.views.tables.columns import COUNTED
from profiler.views.tables.evidence import marked

LOGARITHMIC = 8  # the memory axis is logarithmic if the largest peak is more than so many times the smallest


def _has(row: Row) -> bool:
    return is_shown(row) and row.readings.peak_bytes is not None and samples_per_second(row) is not None


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one line per strategy through its batch sizes, and a step line of the best throughput at each memory."""
    shown = [row for row in rows if _has(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)

    def at(row: Row) -> Pair:
        return (row.readings.peak_bytes or 0) / size, samples_per_second(row) or 0.0

    lines = [line._replace(rows=sorted(line.rows, key=at)) for line in strategy_lines.of_strategies(shown)]
    plain_axes(axes)
    for line in lines:
        too_large = [at(row) for row in line.rows if holds(row) is False]
        strategy_lines.draw(axes, line, [at(row) for row in line.rows], hollow=too_large)
    if any(holds(row) is False for row in shown):
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label=f"hollow: does not fit, {COUNTED}")
    _limits(axes, [at(row) for row in shown], [_name(line.rows[-1]) for line in lines])
    steps = throughput_frontier(shown)
    drawn = [[at(row) for row in line.rows] for line in lines]
    drawn += [_stairs(axes, [at(row) for row in steps]), strategy_lines.limit(axes, rows, size, upright=True)]
    axes.set_xlabel(f"{marked('peak memory', rows)} ({unit}); at the marks: batch size", fontsize=sized(FONT))
    axes.set_ylabel("samples a second", fontsize=sized(FONT))
    labels = _labels(lines, steps, at)
    return lambda: place(axes, labels, others=[at(row) for row in shown], lines=drawn)


def _limits(axes: Axes, points: Sequence[Pair], names: Sequence[str]) -> None:
    """Sets the limits, with room on the right for labels; peaks far apart get a logarithmic axis."""
    xs, ys = zip(*points, strict=True)
    room = 1 / (0.94 - 0.6 * line_end_share(axes, names))
    tall = (max(ys) - min(ys)) or max(ys)
    axes.set_ylim(max(0.0, min(ys) - 0.15 * tall), max(ys) + 0.15 * tall)
    number_axis(axes.yaxis)
    if max(xs) > LOGARITHMIC * min(xs):
        wide = (max(xs) / min(xs)) ** room
        axes.set(xscale="log", xlim=(min(xs) / wide**0.06, min(xs) * wide**0.94))
        log_axis(axes.xaxis)
        return
    wide = ((max(xs) - min(xs)) or max(xs)) * room
    axes.set_xlim(max(0.0, min(xs) - 0.06 * wide), min(xs) + 0.94 * wide)
    number_axis(axes.xaxis)


def _stairs(axes: Axes, points: Sequence[Pair]) -> list[Pair]:
    """Draw the best throughput up to each peak as a step line out to the right edge; return its corners."""
    if not points:
        return []
    corners = [*points, (axes.get_xlim()[1], points[-1][1])]
    axes.plot(
        *zip(*corners, strict=True),
        color=GREY,
        linewidth=sized(5),
        alpha=0.3,
        drawstyle="steps-post",
        zorder=2,
        label="most samples a second up to this peak",
    )
    return [*geometry.stairs(points), corners[-1]]


def _name(row: Row) -> str:
    return f"{shortened(strategy_label(row.case.strategy))}: {row.case.batch_size}"


def _labels(lines: Sequence[StrategyLine], steps: Sequence[Row], at: Callable[[Row], Pair]) -> list[Label]:
    """Return the labels at the line ends, then the batch sizes, those on the throughput frontier first."""
    last = {line.rows[-1].case: line for line in lines}
    rest = [row for line in lines for row in line.rows if row.case not in last]
    names = [(line.rows[-1], _name(line.rows[-1]), True) for line in lines]
    sizes = [(row, str(row.case.batch_size), False) for row in sorted(rest, key=lambda row: row not in steps)]
    return [Label(x=at(row)[0], y=at(row)[1], text=text, must=must) for row, text, must in [*names, *sizes]]


PLOT = Plot(
    panels=batches,
    has=_has,
    height=lambda rows, width: 1.5 + 0.5 * width,
    draw=draw,
    needs="a peak, a step time and a size of the batch",
    is_beside=True,
)
