"""Peak memory against step time: what each strategy saves, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes

from profiler.analysis.rows import Row, TimePlace, time_places
from profiler.core.case import Case
from profiler.core.units import byte_unit, second_unit
from profiler.views.geometry import Pair, lower_left, memory_floor, stairs
from profiler.views.plots.labels import Label, place
from profiler.views.plots.panels import Plot, alike
from profiler.views.plots.style import sized
from profiler.views.plots.theme import BLUE, FONT, GREY, INK, SKY, VERMILLION, area, name, number_axis, plain_axes
from profiler.views.tables.columns import is_point
from profiler.views.tables.evidence import marked

ALL_NAMED = 14  # up to this many points are all labeled; of more, only the frontier and the extremes


def draw(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> Callable[[], object]:
    """Draw all but the labels; the returned function writes these once the layout is final."""
    shown = [row for row in rows if is_point(row)]
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    second, second_name = second_unit(row.step_seconds for row in shown)
    at = {row.case: (place.middle / second, (row.readings.peak_bytes or 0) / size) for row, place in _places(shown)}
    spans = {row.case: (place.low / second, place.high / second) for row, place in _places(shown)}
    plain_axes(axes)
    _limits(axes, list(at.values()), spans.values())
    crosses, limit = _crosses(axes, rows, size)
    frontier = _frontier(axes, [row for row in shown if row.on_frontier], at, spans)
    spreads = _points(axes, shown, at, spans)
    floor = _floor(axes, shown, size)
    by_ratio = ", by its ratio to none" if any(row.time and row.time.num_pairs for row in shown) else ""
    axes.set_xlabel(f"step time{by_ratio} ({second_name})", fontsize=sized(FONT))
    axes.set_ylabel(f"{marked('peak memory', rows)} ({unit})", fontsize=sized(FONT))
    number_axis(axes.xaxis)
    number_axis(axes.yaxis)
    labels = [*_labels(shown, at), *crosses]
    return lambda: place(axes, labels, others=list(at.values()), lines=[frontier, *spreads, *limit, *floor])


def _places(rows: Sequence[Row]) -> list[tuple[Row, TimePlace]]:
    return [(row, place) for row, place in zip(rows, time_places(rows), strict=True)]


def _limits(axes: Axes, points: Sequence[Pair], spans: Iterable[Pair]) -> None:
    """Sets the limits: memory from zero, unless all peaks are close together; room for labels on all sides.

    The points decide the range of times; intervals extend it by at most its width on each side, and are cut off there.
    """
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    peaks = [y for _, y in points]
    wide = (right - left) or right or 1
    tall = (max(peaks) - min(peaks)) or max(peaks) or 1
    ends = [end for span in spans for end in span]
    least, most = max(min(ends), left - wide, 0), min(max(ends), right + wide)
    axes.set_xlim(min(left - 0.14 * wide, least - 0.02 * wide), max(right + 0.22 * wide, most + 0.02 * wide))
    axes.set_ylim(memory_floor(peaks), max(peaks) + 0.18 * tall)


def _frontier(axes: Axes, rows: Sequence[Row], at: dict[Case, Pair], spans: dict[Case, Pair]) -> list[Pair]:
    """Draw the frontier as a step line to the edges, since slower or larger is always possible; return its corners.

    The band around it, in which points cannot be told apart, lies between the step lines of the fast and the slow ends
    of the intervals.
    """
    points = {end: [(spans[row.case][end], at[row.case][1]) for row in rows] for end in (0, 1)}
    fast, slow = (_stairs(axes, points[end]) for end in (0, 1))
    if points[0] != points[1]:
        around = [*fast, *reversed(slow)]
        label = "cannot be told apart"
        axes.fill(*zip(*around, strict=True), color=BLUE, alpha=0.12, linewidth=0, zorder=1, label=label)
    corners = _stairs(axes, [at[row.case] for row in rows])
    axes.plot(*zip(*corners, strict=True), color=BLUE, linewidth=sized(1.4), alpha=0.55, zorder=2, label="frontier")
    return corners


def _stairs(axes: Axes, points: Sequence[Pair]) -> list[Pair]:
    """Return the corners of the step line through the Pareto frontier of the points, out to the edges of the axes."""
    lowest = lower_left(points)
    return stairs([(lowest[0][0], axes.get_ylim()[1]), *lowest, (axes.get_xlim()[1], lowest[-1][1])])


def _points(axes: Axes, rows: Sequence[Row], at: dict[Case, Pair], spans: dict[Case, Pair]) -> list[list[Pair]]:
    """Draw markers with the intervals of their times; return the lines of the intervals."""
    kinds = (
        ("no checkpointing", INK, "s", [row for row in rows if row.case.strategy == "none"]),
        ("on the frontier", BLUE, "o", [row for row in rows if row.on_frontier and row.case.strategy != "none"]),
        (
            "surely beaten in memory and time",
            SKY,
            "o",
            [row for row in rows if not row.on_frontier and row.case.strategy != "none"],
        ),
    )
    lines = []
    for label, colour, marker, places in kinds:
        if places:
            points = [at[row.case] for row in places]
            x, y = zip(*points, strict=True)
            low, high = zip(*(spans[row.case] for row in places), strict=True)
            axes.hlines(y, low, high, color=colour, linewidth=sized(1.2), alpha=0.5, zorder=3)
            lines += [[(left, y), (right, y)] for (_, y), left, right in zip(points, low, high, strict=True)]
            axes.scatter(
                x,
                y,
                s=area(46),
                color=colour,
                marker=marker,
                zorder=5 if marker == "s" else 4,
                label=label,
                edgecolors="white",
                linewidths=sized(0.8),
            )
    return lines


def _floor(axes: Axes, rows: Sequence[Row], size: int) -> list[list[Pair]]:
    """Draw the static memory if it is within the axes; no checkpointing gets below it."""
    floors = [row.static_bytes / size for row in rows if row.static_bytes is not None]
    if not floors or min(floors) < axes.get_ylim()[0]:
        return []
    return [_level(axes, min(floors), GREY, "static memory")]


def _crosses(axes: Axes, rows: Sequence[Row], size: int) -> tuple[list[Label], list[list[Pair]]]:
    """Draw a cross per out-of-memory row, which has no time: at the device's limit, or at the top if that is far."""
    out = [row for row in rows if row.outcome == "out_of_memory"]
    if not out:
        return [], []
    bottom, top = axes.get_ylim()
    limits = [row.environment.device_bytes / size for row in out if row.environment and row.environment.device_bytes]
    near = bool(limits) and top * 0.8 < limits[0] < top * 3
    y = limits[0] if near else top + 0.08 * (top - bottom)
    axes.set_ylim(bottom, y + 0.14 * (y - bottom))
    left, right = axes.get_xlim()
    xs = [left + (right - left) * (index + 0.5) / len(out) for index in range(len(out))]
    axes.scatter(
        xs,
        [y] * len(out),
        s=area(52),
        color=VERMILLION,
        marker="x",
        linewidths=sized(2),
        zorder=4,
        label="out of memory, no time",
    )
    labels = [Label(x=x, y=y, text=name(row), must=len(rows) <= ALL_NAMED) for x, row in zip(xs, out, strict=True)]
    return labels, [_level(axes, y, VERMILLION, "memory of the device")] if near else []


def _level(axes: Axes, y: float, colour: str, label: str) -> list[Pair]:
    axes.axhline(y, color=colour, linewidth=sized(1.1), linestyle=(0, (4, 3)), zorder=1, label=label)
    left, right = axes.get_xlim()
    return [(left, y), (right, y)]


def _labels(rows: Sequence[Row], at: dict[Case, Pair]) -> list[Label]:
    """Return the labels, the most important first; of many points only `none`, the extremes and the frontier."""
    few = len(rows) <= ALL_NAMED
    ends = [choose(rows, key=lambda row: at[row.case][axis]).case for axis in (0, 1) for choose in (min, max)]

    def wanted(row: Row) -> int:
        return 0 if row.case.strategy == "none" else 1 if row.case in ends else 2 if row.on_frontier else 3

    return [
        Label(
            x=at[row.case][0],
            y=at[row.case][1],
            text=name(row),
            must=few or wanted(row) < 2,
            weight="bold" if row.case.strategy == "none" else "normal",
        )
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
