"""Plots of time against peak memory: what each strategy or plan saves, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.rows import Row, time_spans
from profiler.analysis.time_ratio import TimeRatio, verdict
from profiler.core.case import Case
from profiler.core.errors import UserError
from profiler.core.units import byte_unit, second_unit
from profiler.planning import simulator
from profiler.planning.chain import Chain
from profiler.planning.simulator import KINDS, Cost, largest_stage, none
from profiler.planning.solver import Point
from profiler.scripts.report import Variant
from profiler.views.plots import MOST, Plot, alike, picture, theme, write
from profiler.views.plots.theme import BLUE, GREY, USUAL, Label, Pair, Style, sized
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import heading, is_point, marked
from profiler.views.tables.script import against_none

CROWD = 100  # points
ALL_NAMED = 14  # up to this many points are all labeled; of more, only the frontier and the extremes
STRATEGY, LONGEST = "strategy", 60  # the word of a script's variant; letters of a label
SIZE = (8.5, 5.4)  # inches, of the pictures of plans
MOST_PLANS = 60  # of more, only the step line is drawn
RIVALS = {  # in different sizes, since they often coincide
    "uniform": ("uniform splits", "o", theme.ORANGE, 9),
    "first": ("the first N", "^", theme.GREEN, 5),
    "every": ("every j-th", "s", theme.PURPLE, 6),
}
assert tuple(RIVALS) == KINDS, "every kind of rival has its mark"
Curve = Sequence[tuple[int, float]]  # bytes of the peak, and the time as a ratio to the step as it is


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw all but the labels; the returned function writes these once the layout is final."""
    shown = [row for row in rows if is_point(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    _, second_name = second_unit(row.step_seconds for row in shown)
    at, spans = positions(shown)
    # memory from zero, unless all peaks are close together; the points decide the range of times, and intervals extend
    # it by at most its width on each side
    peaks, times = zip(*at.values(), strict=True)
    low, high = min(times), max(times)
    wide = (max(peaks) - min(peaks)) or max(peaks) or 1
    tall = (high - low) or high or 1
    ends = [end for span in spans.values() for end in span]
    least, most = max(min(ends), low - tall, 0), min(max(ends), high + tall)
    is_close = 0.7 * max(peaks) < min(peaks) < max(peaks)  # then a little below the lowest
    axes.set_xlim(min(peaks) - 0.3 * wide if is_close else 0.0, max(peaks) + 0.22 * wide)
    axes.set_ylim(max(0, min(low - 0.14 * tall, least - 0.02 * tall)), max(high + 0.18 * tall, most + 0.02 * tall))
    crosses = _crosses(axes, rows, size)
    lines = [_frontier(axes, [row.case for row in shown if row.on_frontier], at, spans)]
    lines += _points(axes, shown, at, spans)
    floors = [row.static_bytes / size for row in shown if row.static_bytes is not None]
    if floors and min(floors) >= axes.get_xlim()[0]:  # no checkpointing gets below it
        axes.axvline(
            min(floors), color=GREY, linewidth=sized(1.1), linestyle=(0, (1, 2)), zorder=1, label="static memory"
        )
        lines.append([(min(floors), end) for end in axes.get_ylim()])
    lines.append(theme.limit(axes, rows, size, upright=True))
    axes.set_xlabel(f"{marked('peak memory', rows)} ({unit})")
    axes.set_ylabel(f"step time ({second_name})")
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis)
    are_few = len(shown) <= ALL_NAMED
    extremes = [choose(shown, key=lambda row: at[row.case][axis]).case for axis in (0, 1) for choose in (min, max)]

    def rank(row: Row) -> int:  # the most important first; of many points only `none`, the extremes and the frontier
        return 0 if row.case.label == "none" else 1 if row.case in extremes else 2 if row.on_frontier else 3

    labels = [
        Label(*at[row.case], theme.name(row), are_few or rank(row) < 2, "normal" if rank(row) else "bold")
        for row in sorted(shown, key=rank)
        if are_few or rank(row) < 3
    ]
    labels += crosses
    return lambda: theme.place(axes, labels, others=list(at.values()), lines=lines)


def positions(rows: Sequence[Row]) -> tuple[dict[Case, Pair], dict[Case, Pair]]:
    """Return for each case its peak and its step time, and the interval of its time, in the units of the axes."""
    size, _ = byte_unit(row.readings.peak_bytes for row in rows)
    second, _ = second_unit(row.step_seconds for row in rows)
    spans = dict(zip((row.case for row in rows), time_spans(rows), strict=True))
    at = {row.case: ((row.readings.peak_bytes or 0) / size, spans[row.case][1] / second) for row in rows}
    return at, {case: (low / second, high / second) for case, (low, _, high) in spans.items()}


def _frontier(axes: Axes, cases: Sequence[Case], at: Mapping[Case, Pair], spans: Mapping[Case, Pair]) -> list[Pair]:
    """Draw the frontier as a step line to the edges, since slower or larger is always possible; return its corners."""

    def line(points: Sequence[Pair]) -> list[Pair]:
        lowest: list[Pair] = []  # those that no other point is both left of and below
        for point in sorted(set(points)):
            if not lowest or point[1] < lowest[-1][1]:
                lowest.append(point)
        return theme.stairs([(lowest[0][0], axes.get_ylim()[1]), *lowest, (axes.get_xlim()[1], lowest[-1][1])])

    # the band between the step lines of the fast and the slow ends of the intervals
    fast, slow = ([(at[case][0], spans[case][end]) for case in cases] for end in (0, 1))
    if fast != slow:
        around = [*line(fast), *reversed(line(slow))]
        label = "cannot be told apart"
        axes.fill(*zip(*around, strict=True), color=BLUE, alpha=0.12, linewidth=0, zorder=1, label=label)
    corners = line([at[case] for case in cases])
    axes.plot(*zip(*corners, strict=True), color=BLUE, linewidth=sized(1.4), alpha=0.55, zorder=2, label="frontier")
    return corners


def _points(axes: Axes, rows: Sequence[Row], at: Mapping[Case, Pair], spans: Mapping[Case, Pair]) -> list[list[Pair]]:
    """Draw markers with the intervals of their times; return the lines of the intervals."""
    kinds: dict[tuple[str, str, str], list[Case]] = {}
    for row in sorted(rows, key=lambda row: (row.case.label != "none", not row.on_frontier)):
        kind = ("on the frontier", BLUE, "o") if row.on_frontier else ("surely beaten in memory and time", GREY, "o")
        kind = ("no checkpointing", theme.INK, "s") if row.case.label == "none" else kind
        kinds.setdefault(kind, []).append(row.case)
    for (label, colour, marker), cases in kinds.items():
        x, y = zip(*(at[case] for case in cases), strict=True)
        axes.vlines(
            x, *zip(*(spans[case] for case in cases), strict=True), color=colour, linewidth=sized(3), alpha=0.35
        )
        edge = "white" if len(rows) <= CROWD else colour  # of very many only the edges would be seen
        face, edge = ("white", GREY) if colour == GREY else (colour, edge)  # beaten points are hollow
        look = {"facecolors": face, "marker": marker, "edgecolors": edge, "linewidths": sized(1), "label": label}
        axes.scatter(x, y, s=theme.area(46), zorder=5 if marker == "s" else 4, **look)  # type: ignore[arg-type]
    if any(low < high for low, high in spans.values()):
        axes.plot([], [], color=GREY, linewidth=sized(3), alpha=0.35, label="interval of the time")
    return [[(at[row.case][0], end) for end in spans[row.case]] for row in rows]


def _crosses(axes: Axes, rows: Sequence[Row], size: int) -> list[Label]:
    """Draw a cross per out-of-memory row, which has no time: at the device's limit, or at the right if that is far."""
    out = [row for row in rows if row.outcome == "out_of_memory"]
    if not out:
        return []
    left, right = axes.get_xlim()
    limits = [row.environment.device_bytes / size for row in out if row.environment and row.environment.device_bytes]
    near = bool(limits) and right * 0.8 < limits[0] < right * 3
    x = limits[0] if near else right + 0.08 * (right - left)
    axes.set_xlim(left, x + 0.2 * (x - left))
    bottom, top = axes.get_ylim()
    ys = [bottom + (top - bottom) * (index + 0.5) / len(out) for index in range(len(out))]
    look = {"color": theme.VERMILLION, "marker": "x", "linewidths": sized(2), "label": "out of memory, no time"}
    axes.scatter([x] * len(out), ys, s=theme.area(52), zorder=4, **look)  # type: ignore[arg-type]
    return [Label(x, y, theme.name(row), len(rows) <= ALL_NAMED) for y, row in zip(ys, out, strict=True)]


PLOT = Plot(
    panels=alike,
    has=is_point,
    height=lambda rows, width: 1.35 + 0.5 * width,
    draw=draw,
    needs="both a peak and a step time",
    is_beside=True,
)


def plot_plans(points: Sequence[Point], chain: Chain, *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the frontier as a step line, with every uniform split, first N and every j-th as points.

    Raises UserError if the suffix is not that of a picture, or if the file exists, without `force`.
    """
    draw = partial(_plans, points=points, chain=chain)
    return write(lambda: picture([draw], [SIZE[1]], width=SIZE[0], title=title), path=path, force=force)


def plot_levers(
    curves: Mapping[str, Curve], rows: Sequence[Row], *, chosen: Row | None, limit: int, path: Path, force: bool = False
) -> Path:
    """Draw a curve for the plans with each lever, the last with all of them, and the rows that were run.

    Raises UserError as `plot_plans` does.
    """
    draw = partial(_levers, curves=curves, rows=rows, chosen=chosen, limit=limit)
    return write(lambda: picture([draw], [SIZE[1]], width=SIZE[0], title=heading(rows)), path=path, force=force)


def script_frontier(variants: Sequence[Variant], *, path: Path, force: bool = False, style: Style = USUAL) -> Path:
    """Draw the extra time of a script's step against its peak.

    Raises UserError as `plot_plans` does, and where no strategy has a time beside that of `none`.
    """

    def figure() -> Figure:
        if drawn := draw_script(variants, style):
            return drawn
        hint = "`--strategies none,all` gives them; --kind phases draws the memory by phase"
        raise UserError("nothing to plot: no strategy has a time beside that of none", hint=hint)

    return write(figure, path=path, force=force, style=style)


def draw_script(variants: Sequence[Variant], style: Style) -> Figure | None:
    """Return a panel for each setting beside the strategy; None where no strategy has a time beside that of `none`.

    Raises UserError for too many panels.
    """
    settings: dict[str, list[Variant]] = {}
    for variant in variants:
        is_timed = _is_base(variant) or against_none(variant, variants)
        if is_timed and variant.outcome == "ok" and variant.processes and variant.largest.peak_bytes:
            rest = ", ".join([variant.words["device"], *(f"{name} {text}" for name, text in variant.filled.items())])
            settings.setdefault(rest, []).append(variant)
    panels = [partial(_ways, rest=rest, variants=some) for rest, some in settings.items() if len(some) > 1]
    if not panels:
        return None
    if len(panels) > MOST:
        raise UserError(f"{len(panels)} settings are too many for one picture", hint=f"one holds {MOST}")
    columns = min(len(panels), style.max_columns)
    width = style.width or SIZE[0] * (1 if columns == 1 else 0.85 * columns)
    heights = [sized(SIZE[1])] * ceil(len(panels) / columns)
    return picture(panels, heights, width=width, columns=columns, ratio=style.ratio)


def _is_base(variant: Variant) -> bool:
    return variant.words.get(STRATEGY) == "none"


def _ways(axes: Axes, *, rest: str, variants: Sequence[Variant]) -> Callable[[], object]:
    size, unit = byte_unit(one.largest.peak_bytes for one in variants)
    labels, sure = [], list[Pair]()
    for one in variants:
        is_base, ratio = _is_base(one), against_none(one, variants) or TimeRatio(ratio=1.0)
        x, y = (one.largest.peak_bytes or 0) / size, (ratio.ratio - 1) * 100
        if ratio.interval:
            low, high = ((end - 1) * 100 for end in ratio.interval)
            axes.vlines(x, low, high, color=BLUE, linewidth=sized(1.2), alpha=0.6)
        if is_base or one.gpu or verdict(ratio) in ("faster", "slower"):
            sure.append((x, y))
        labels.append(Label(x, y, short(plain(one.words[STRATEGY]), LONGEST), weight="bold" if is_base else "normal"))
    best = [at for nth, at in enumerate(sorted(sure)) if all(at[1] < other[1] for other in sorted(sure)[:nth])]
    line, places = theme.stairs(best), [(label.x, label.y) for label in labels]
    axes.plot(*zip(*line, strict=True), color=BLUE, linewidth=sized(1.5), label="the fastest below a peak")
    axes.plot(*zip(*places, strict=True), "o", color=BLUE, ms=sized(7), mec="white", zorder=4)
    axes.set_title(short(plain(", ".join(filter(None, (variants[0].largest.module or "", rest)))), LONGEST))
    how, known = ("rehearsed", "estimated") if variants[0].gpu else ("measured", "measured")
    axes.set(xlabel=f"{how} peak ({unit})", ylabel=f"extra time of a step (%), {known}")
    axes.margins(x=0.15, y=0.15)
    _number_both(axes)
    return partial(theme.place, axes, labels, lines=[line])


def _plans(axes: Axes, *, points: Sequence[Point], chain: Chain) -> None:
    size, unit = byte_unit(point.peak_bytes for point in points)
    base = none(chain).cost
    extra = [_extra(point, base) for point in points]
    peaks = [point.peak_bytes / size for point in points]
    axes.step([*peaks, base.peak_bytes / size], [*extra, extra[-1]], where="post", color=BLUE, label="plans", zorder=3)
    if len(points) <= MOST_PLANS:
        axes.plot(peaks, extra, ".", color=BLUE, markersize=5, zorder=3)
    for kind, (words, mark, colour, points_wide) in RIVALS.items():
        costs = [way.cost for way in simulator.costed(chain, kind)]
        places = [cost.peak_bytes / size for cost in costs], [_extra(cost, base) for cost in costs]
        axes.plot(*places, mark, color=colour, markersize=points_wide, mfc="none", linestyle="none", label=words)
    floor = largest_stage(chain)[1] / size
    axes.axvline(floor, color=GREY, linewidth=1, linestyle="--", label="floor: static bytes and the largest stage")
    axes.set(xlabel=f"peak memory ({unit}), by the costs of the stages", ylabel="extra time of a step (%)")
    _number_both(axes)


def _extra(point: Point | Cost, base: Cost) -> float:
    """Return the extra time in percent of the step without checkpointing; 0 if that takes no time."""
    return (point.step_seconds / base.step_seconds - 1) * 100 if base.step_seconds else 0.0


def _levers(
    axes: Axes, *, curves: Mapping[str, Curve], rows: Sequence[Row], chosen: Row | None, limit: int
) -> Callable[[], object]:
    size, unit = byte_unit([*(nbytes for curve in curves.values() for nbytes, _ in curve), rows[0].readings.peak_bytes])
    drawn = list[list[Pair]]()
    for number, (name, curve) in enumerate(curves.items()):
        drawn.append(theme.stairs([(nbytes / size, (ratio - 1) * 100) for nbytes, ratio in curve]))
        is_last = number == len(curves) - 1
        look = {"color": theme.INK, "linewidth": sized(2.4)} if is_last else {
            "color": theme.LINE_COLOURS[number % len(theme.LINE_COLOURS)], "linewidth": sized(1.5)
        }  # fmt: skip
        axes.plot(*zip(*drawn[-1], strict=True), label=f"plans {name}", zorder=3, **look)  # type: ignore[arg-type]
    ran = [row for row in rows if row.time_ratio is not None and row.readings.peak_bytes]
    at = [((row.readings.peak_bytes or 0) / size, ((row.time_ratio or 1.0) - 1) * 100) for row in ran]
    axes.plot(*zip(*at, strict=True), "o", color=GREY, ms=sized(6), mec="white", label="was run", zorder=4)
    axes.axvline(
        limit / size, color=theme.VERMILLION, linewidth=sized(1.2), linestyle="--", label="to fit, all that is reserved"
    )
    labels = [Label(*place, theme.name(row)) for row, place in zip(ran, at, strict=True)]
    for row, place in zip(ran, at, strict=True):
        if row is chosen:
            axes.plot(*place, "*", color=theme.VERMILLION, ms=sized(15), mec="white", label="chosen", zorder=5)
    known = "estimated" if rows[0].case.has_estimated_times else "by the costs of stages"
    axes.set(xlabel=f"{marked('peak memory', rows)} ({unit})", ylabel=f"extra time of a step (%), {known}")
    axes.margins(x=0.08, y=0.12)
    _number_both(axes)
    return partial(theme.place, axes, labels, lines=drawn)


def _number_both(axes: Axes) -> None:
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis)
    theme.tell_start(axes)
