"""Plots of lines: each strategy's peak over a numeric setting and its throughput, and the frontier of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from profiler.analysis.axes import exponent, nearest_growth, rising
from profiler.analysis.memory_fit import holds, samples_per_second, throughput_frontier
from profiler.analysis.rows import Row
from profiler.core.case import Choice
from profiler.core.plan_file import strategy_label
from profiler.core.units import byte_unit
from profiler.planning import candidates
from profiler.planning.candidates import KINDS, largest_stage, none
from profiler.planning.chain import Chain
from profiler.planning.simulator import Cost
from profiler.planning.solver import Point
from profiler.views.plots import theme
from profiler.views.plots.panels import Plot, batches, curves, space_of
from profiler.views.plots.theme import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILLION, Label, Pair, sized
from profiler.views.tables.columns import COUNTED
from profiler.views.tables.evidence import marked

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)  # what is out of memory is vermillion
MARKERS = "o^vDPX<>ph"
PROPORTIONAL = "1.00"  # the usual exponent of saved bytes over the batch size: not shown
SMOOTH = 40  # pieces of a dotted curve
NAME = 0.42  # inches of height for a name with its growth
LOGARITHMIC = 8  # a memory axis is logarithmic if the largest peak is more than so many times the smallest
PLANS_SIZE = (8.5, 5.4)  # inches
CROWD = 60  # plans; of more, only the step line is drawn
RIVALS = {
    "uniform": ("uniform splits", "o", ORANGE, 9),
    "first": ("the first N", "^", GREEN, 5),
    "every": ("every j-th", "s", PURPLE, 6),
}  # in different sizes, since they often coincide
assert tuple(RIVALS) == KINDS, "every kind of rival has its mark"


class StrategyLine(NamedTuple):
    """The rows of one strategy, and how they are drawn. Markers tell lines apart in grayscale and beyond six colors."""

    strategy: Choice
    rows: list[Row]
    colour: str
    marker: str

    def draw(self, axes: Axes, points: Sequence[Pair], *, hollow: Sequence[Pair] = ()) -> None:
        """Draw a line and its points; those that are also in `hollow` are drawn hollow."""
        shape: dict[str, Any] = {"marker": self.marker, "markersize": sized(6), "color": self.colour}
        axes.plot(*zip(*points, strict=True), **shape, mec="white", mew=sized(0.7), linewidth=sized(1.5), zorder=4)
        if hollow:
            axes.plot(*zip(*hollow, strict=True), **shape, mfc="white", mew=sized(1.3), linestyle="none", zorder=5)


def of_strategies(rows: Sequence[Row]) -> list[StrategyLine]:
    """Return one line per strategy, `none` first."""
    by_strategy: dict[Choice, list[Row]] = {}
    for row in rows:
        by_strategy.setdefault(row.case.label, []).append(row)
    none = by_strategy.pop(Choice("none"), None)
    others = [
        StrategyLine(strategy, of_it, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
        for number, (strategy, of_it) in enumerate(by_strategy.items())
    ]
    return [StrategyLine(Choice("none"), none, INK, "s"), *others] if none else others


def _growth(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one line per strategy on logarithmic axes, and dotted its best fit (constant plus n or 1/n, or a power)."""
    space = space_of(rows)
    axis = rising(space)
    size_of = {row.case: float(space.settings[row.case][axis.name] or 0) for row in rows}
    shown = [row for row in rows if theme.has_peak(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    labels, heights, drawn = list[Label](), list[float](), list[list[Pair]]()
    for line in of_strategies(shown):
        points = sorted((size_of[row.case], (row.readings.peak_bytes or 0) / size) for row in line.rows)
        line.draw(axes, points)
        labels.append(
            Label(*points[-1], theme.shortened(strategy_label(line.strategy)) + _fit(axes, line, size_of, size))
        )
        heights += [y for _, y in points]
        drawn.append(points)
    static = {size_of[row.case]: sum((row.readings.static_bytes or {}).values()) / size for row in shown}
    floor = sorted((x, y) for x, y in static.items() if y)
    if axis.name == "ranks" and floor:  # checkpointing does not change static bytes, and ranks may shard them
        axes.plot(*zip(*floor, strict=True), color=INK, linestyle="-.", linewidth=sized(1.4), label="static bytes")
        heights += [y for _, y in floor]
    sizes = [size_of[row.case] for row in shown]
    wide = (max(sizes) / min(sizes)) ** (1 / (0.94 - theme.line_end_share(axes, [label.text for label in labels])))
    axes.set(xscale="log", yscale="log", xlim=(min(sizes) / wide**0.06, min(sizes) * wide**0.94))
    axes.set_ylim(min(heights) / 1.4, max(heights) * 1.6)
    theme.log_axis(axes.yaxis)
    axes.minorticks_off()
    axes.set_xticks([float(value or 0) for value in axis.values], [f"{value:g}" for value in axis.values])
    top = axes.get_ylim()[1] / 1.12
    for x in {size_of[row.case] for row in rows if row.outcome == "out_of_memory"}:  # which have no peak
        axes.scatter(x, top, s=theme.area(52), color=VERMILLION, marker="x", label="out of memory", linewidths=sized(2))
    theme.limit(axes, rows, size, upright=False)
    axes.plot([], [], color=GREY, linestyle=":", linewidth=sized(1.2), label="nearest growth, at the name")
    axes.set_xlabel(f"{axis.label} (n)")
    axes.set_ylabel(f"{marked('peak memory', rows)} ({unit})")
    return lambda: theme.place(axes, labels, lines=drawn)


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
    return f"\n{growth.text()}{kept}"


def _has_rate(row: Row) -> bool:
    return theme.is_shown(row) and row.readings.peak_bytes is not None and samples_per_second(row) is not None


def _throughput(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw one line per strategy through its batch sizes, and a step line of the best throughput at each memory."""
    shown = [row for row in rows if _has_rate(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)

    def at(row: Row) -> Pair:
        return (row.readings.peak_bytes or 0) / size, samples_per_second(row) or 0.0

    lines = [line._replace(rows=sorted(line.rows, key=at)) for line in of_strategies(shown)]
    drawn = [[at(row) for row in line.rows] for line in lines]
    for line, points in zip(lines, drawn, strict=True):
        line.draw(axes, points, hollow=[at(row) for row in line.rows if holds(row) is False])
    if any(holds(row) is False for row in shown):
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label=f"hollow: does not fit, {COUNTED}")
    last = [line.rows[-1] for line in lines]
    names = [f"{theme.shortened(strategy_label(row.case.label))}: {row.case.batch_size}" for row in last]
    _limits(axes, [at(row) for row in shown], 1 / (0.94 - 0.6 * theme.line_end_share(axes, names)))
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
    rest = sorted((row for row in shown if row not in last), key=lambda row: row not in best)
    labels = [Label(*at(row), text) for row, text in zip(last, names, strict=True)]
    labels += [Label(*at(row), str(row.case.batch_size), must=False) for row in rest]
    return lambda: theme.place(axes, labels, others=[at(row) for row in shown], lines=drawn)


def _limits(axes: Axes, points: Sequence[Pair], room: float) -> None:
    """Sets the limits, `room` times as wide as the points; peaks far apart get a logarithmic axis."""
    xs, ys = zip(*points, strict=True)
    tall = (max(ys) - min(ys)) or max(ys)
    axes.set_ylim(max(0.0, min(ys) - 0.15 * tall), max(ys) + 0.15 * tall)
    theme.number_axis(axes.yaxis)
    if max(xs) > LOGARITHMIC * min(xs):
        wide = (max(xs) / min(xs)) ** room
        axes.set(xscale="log", xlim=(min(xs) / wide**0.06, min(xs) * wide**0.94))
        theme.log_axis(axes.xaxis)
        return
    wide = ((max(xs) - min(xs)) or max(xs)) * room
    axes.set_xlim(max(0.0, min(xs) - 0.06 * wide), min(xs) + 0.94 * wide)
    theme.number_axis(axes.xaxis)


GROWTH = Plot(
    panels=curves,
    has=theme.has_peak,
    height=lambda rows, width: max(1.35 + 0.5 * width, 1.9 + NAME * len({row.case.label for row in rows})),
    draw=_growth,
    needs="a peak",
    is_beside=True,
)
THROUGHPUT = Plot(
    panels=batches,
    has=_has_rate,
    height=lambda rows, width: 1.5 + 0.5 * width,
    draw=_throughput,
    needs="a peak, a step time and a size of the batch",
    is_beside=True,
)


def plot_plans(points: Sequence[Point], chain: Chain, *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the frontier as a step line, with every uniform split, first N and every j-th as points.

    Raises UserError if the suffix is not that of a theme.picture, or if the file exists, without `force`.
    """
    theme.refuse(path, force=force)
    with theme.at_work(theme.USUAL):
        figure = theme.picture(
            [partial(_plans, points=points, chain=chain)], [PLANS_SIZE[1]], width=PLANS_SIZE[0], title=title
        )
    return theme.save(figure, path=path, force=force)


def _plans(axes: Axes, *, points: Sequence[Point], chain: Chain) -> None:
    size, unit = byte_unit(point.peak_bytes for point in points)
    base = none(chain).cost
    extra = [_extra(point, base) for point in points]
    peaks = [point.peak_bytes / size for point in points]
    axes.step([*peaks, base.peak_bytes / size], [*extra, extra[-1]], where="post", color=BLUE, label="plans", zorder=3)
    if len(points) <= CROWD:
        axes.plot(peaks, extra, ".", color=BLUE, markersize=5, zorder=3)
    for kind, (words, mark, colour, points_wide) in RIVALS.items():
        costs = [cost for _, _, cost in candidates.costed(chain, kind)]
        places = [cost.peak_bytes / size for cost in costs], [_extra(cost, base) for cost in costs]
        axes.plot(*places, mark, color=colour, markersize=points_wide, mfc="none", linestyle="none", label=words)
    floor = largest_stage(chain)[1] / size
    axes.axvline(floor, color=GREY, linewidth=1, linestyle="--", label="floor: static bytes and the largest stage")
    axes.set(xlabel=f"peak memory ({unit}), by the costs of the stages", ylabel="extra time of a step (%)")
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis)
    theme.tell_start(axes)


def _extra(point: Point | Cost, base: Cost) -> float:
    """Return the extra time in percent of the step without checkpointing; 0 if that takes no time."""
    return (point.step_seconds / base.step_seconds - 1) * 100 if base.step_seconds else 0.0
