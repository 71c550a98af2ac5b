"""Step time against peak memory: what each strategy saves, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.axes import Axes

from profiler.analysis.rows import Row, time_places
from profiler.core.case import Case
from profiler.core.units import byte_unit, second_unit
from profiler.views.plots import theme
from profiler.views.plots.panels import Plot, alike
from profiler.views.plots.theme import BLUE, GREY, INK, VERMILLION, Label, Pair, sized
from profiler.views.tables.columns import is_point
from profiler.views.tables.evidence import marked

CROWD = 100  # points
ALL_NAMED = 14  # up to this many points are all labeled; of more, only the frontier and the extremes


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw all but the labels; the returned function writes these once the layout is final."""
    shown = [row for row in rows if is_point(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    _, second_name = second_unit(row.step_seconds for row in shown)
    at, spans = positions(shown)
    _limits(axes, list(at.values()), spans.values())
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
    labels = [*_labels(shown, at), *crosses]
    return lambda: theme.place(axes, labels, others=list(at.values()), lines=lines)


def positions(rows: Sequence[Row]) -> tuple[dict[Case, Pair], dict[Case, Pair]]:
    """Return for each case its peak and its step time, and the interval of its time, in the units of the axes."""
    size, _ = byte_unit(row.readings.peak_bytes for row in rows)
    second, _ = second_unit(row.step_seconds for row in rows)
    places = list(zip(rows, time_places(rows), strict=True))
    at = {row.case: ((row.readings.peak_bytes or 0) / size, place.middle / second) for row, place in places}
    return at, {row.case: (place.low / second, place.high / second) for row, place in places}


def _limits(axes: Axes, points: Sequence[Pair], spans: Iterable[Pair]) -> None:
    """Sets the limits: memory from zero, unless all peaks are close together; room for labels on all sides.

    The points decide the range of times; intervals extend it by at most its width on each side, and are cut off there.
    """
    peaks, times = zip(*points, strict=True)
    low, high = min(times), max(times)
    wide = (max(peaks) - min(peaks)) or max(peaks) or 1
    tall = (high - low) or high or 1
    ends = [end for span in spans for end in span]
    least, most = max(min(ends), low - tall, 0), min(max(ends), high + tall)
    axes.set_xlim(theme.memory_floor(peaks), max(peaks) + 0.22 * wide)
    axes.set_ylim(max(0, min(low - 0.14 * tall, least - 0.02 * tall)), max(high + 0.18 * tall, most + 0.02 * tall))


def _frontier(axes: Axes, cases: Sequence[Case], at: Mapping[Case, Pair], spans: Mapping[Case, Pair]) -> list[Pair]:
    """Draw the frontier as a step line to the edges, since slower or larger is always possible; return its corners.

    The band around it, in which points cannot be told apart, lies between the step lines of the fast and the slow ends
    of the intervals.
    """

    def line(points: Sequence[Pair]) -> list[Pair]:
        lowest = theme.lower_left(points)
        return theme.stairs([(lowest[0][0], axes.get_ylim()[1]), *lowest, (axes.get_xlim()[1], lowest[-1][1])])

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
        kind = ("surely beaten in memory and time", GREY, "o")
        if row.case.label == "none":
            kind = ("no checkpointing", INK, "s")
        elif row.on_frontier:
            kind = ("on the frontier", BLUE, "o")
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
    look = {"color": VERMILLION, "marker": "x", "linewidths": sized(2), "label": "out of memory, no time"}
    axes.scatter([x] * len(out), ys, s=theme.area(52), zorder=4, **look)  # type: ignore[arg-type]
    return [Label(x, y, theme.name(row), len(rows) <= ALL_NAMED) for y, row in zip(ys, out, strict=True)]


def _labels(rows: Sequence[Row], at: Mapping[Case, Pair]) -> list[Label]:
    """Return the labels, the most important first; of many points only `none`, the extremes and the frontier."""
    few = len(rows) <= ALL_NAMED
    ends = [choose(rows, key=lambda row: at[row.case][axis]).case for axis in (0, 1) for choose in (min, max)]

    def wanted(row: Row) -> int:
        return 0 if row.case.label == "none" else 1 if row.case in ends else 2 if row.on_frontier else 3

    return [
        Label(*at[row.case], theme.name(row), few or wanted(row) < 2, "bold" if row.case.label == "none" else "normal")
        for row in sorted(rows, key=wanted)
        if few or wanted(row) < 3
    ]


PLOT = Plot(
    panels=alike,
    has=is_point,
    height=lambda rows, width: 1.35 + 0.5 * width,
    draw=draw,
    needs="both a peak and a step time",
    is_beside=True,
)
