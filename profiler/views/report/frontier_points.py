"""Layout of the chart of peak memory against step time: points, lines, names; `charts.html` draws it.

Horizontal positions are percentages of a width that is not known here; vertical ones are pixels, so that text keeps its
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import msgspec

from profiler.analysis.rows import Row, TimePlace, time_places
from profiler.core.strategy_label import strategy_label
from profiler.core.units import byte_unit, bytes_text, change_text, second_unit, seconds_text, spread_text
from profiler.views.geometry import Box, Scale, Tick, around, free, lower_left, memory_floor, stairs
from profiler.views.sanitize import short
from profiler.views.tables.columns import is_point, ratio_text
from profiler.views.tables.evidence import peak_name

TOP, BOTTOM = 34, 262  # pixels
LEFT, RIGHT = 6.0, 94.0  # percents
LINE, LETTER = 16, 7.4  # pixels: the height of a name, and the width of a letter
SIDES = {"right": (10, 4), "left": (-10, 4)}  # pixels from the point to the start of its name's baseline
NARROW, WIDE = 320, 440  # widths of the chart in pixels, at which names must not overlap
MARK = 7  # half the side of the square that a point takes, in pixels
NAME, LONGEST = 24, 80  # characters of a name in the chart, and in its description
SAME = 0.5  # percent of the width: points of equal peak within it are at one place
KINDS = ("beaten", "frontier", "baseline")  # later ones are drawn on top


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy, by the id of its case. `side` is the side of its name, one of SIDES; None if there is no room."""

    case: str
    x: float
    y: float
    least_x: float  # the lower end of the interval of its time
    most_x: float
    kind: str  # one of KINDS
    name: str
    said: str  # the point in words
    peak_bytes: int
    side: str | None = None
    is_for_wide: bool = False  # the name has room on a wide screen only

    @property
    def offset(self) -> tuple[int, int]:
        """Offset of the name from the point, in pixels."""
        return SIDES[self.side] if self.side else (0, 0)


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float


class FrontierChart(msgspec.Struct, frozen=True, kw_only=True):
    """The whole chart. `memory` maps bytes to pixels, for lines that the page's script draws."""

    points: tuple[FrontierPoint, ...]
    stairs: tuple[Edge, ...]
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    memory_unit: str
    time_unit: str
    memory: Scale
    times_begin_above_zero: bool
    floor: float | None  # y of the static memory; None if it is not known, or below the axis


def frontier(rows: Sequence[Row]) -> FrontierChart | None:
    """Return the chart of the rows that have both a peak and a time; None if none has."""
    shown = [row for row in rows if is_point(row)]
    if not shown:
        return None
    size, unit = byte_unit(row.readings.peak_bytes for row in shown)
    second, time_unit = second_unit(row.step_seconds for row in shown)
    places = time_places(shown)
    time = around(_ends(places, second), start=LEFT, end=RIGHT)
    peaks = [(row.readings.peak_bytes or 0) / size for row in shown]
    memory = around([*peaks, memory_floor(peaks)], start=BOTTOM, end=TOP)
    points = [_point(row, place, time, memory, second, size) for row, place in zip(shown, places, strict=True)]
    floors = [row.static_bytes / size for row in shown if row.static_bytes is not None]
    return FrontierChart(
        points=_named(points),
        stairs=_edges([point for point, row in zip(points, shown, strict=True) if row.on_frontier]),
        across=time.ticks(),
        down=memory.ticks(),
        memory_unit=unit,
        time_unit=time_unit,
        memory=Scale(low=memory.low * size, high=memory.high * size, start=memory.start, end=memory.end),
        times_begin_above_zero=time.low > 0,
        floor=memory.at(min(floors)) if floors and min(floors) >= memory.low else None,
    )


def said(row: Row) -> str:
    """Return a row in words, with its change against `none`."""
    is_baseline = row.case.strategy == "none"
    change = f" ({change_text(row.peak_ratio)})" if row.peak_ratio and not is_baseline else ""
    untold = ", cannot be told apart" if row.time_verdict == "cannot be told apart" and row.time_ratio_range else ""
    slower = f" ({ratio_text(row)}{untold})" if row.time_ratio and not is_baseline else ""
    kind = "estimated step" if row.case.has_estimated_times else "step"
    noise = f", spread {spread_text(row.step_spread)}" if row.step_spread is not None else ""
    peak = f"{peak_name(row)} {bytes_text(row.readings.peak_bytes)}{change}"
    name = short(strategy_label(row.case.strategy), LONGEST)
    return f"{name}: {peak}, {kind} {seconds_text(row.step_seconds)}{slower}{noise}"


def _ends(places: Sequence[TimePlace], second: float) -> list[float]:
    """Return the times that the axis must span: of all points, and of their intervals as far as they are shown.

    An interval is cut where it reaches farther beyond the outermost points than these are from each other.
    """
    left, right = min(place.middle for place in places), max(place.middle for place in places)
    wide = (right - left) or right
    ends = [end for place in places for end in (max(place.low, left - wide), min(place.high, right + wide))]
    return [end / second for end in (left, right, *ends)]


def _point(row: Row, place: TimePlace, time: Scale, memory: Scale, second: float, size: int) -> FrontierPoint:
    kind = "baseline" if row.case.strategy == "none" else "frontier" if row.on_frontier else "beaten"
    least, most = max(place.low / second, time.low), min(place.high / second, time.high)
    return FrontierPoint(
        case=row.case.id,
        x=time.at(place.middle / second),
        y=memory.at((row.readings.peak_bytes or 0) / size),
        least_x=time.at(least),
        most_x=time.at(most),
        kind=kind,
        name=short(strategy_label(row.case.strategy), NAME),
        said=said(row),
        peak_bytes=row.readings.peak_bytes or 0,
    )


def _edges(points: Sequence[FrontierPoint]) -> tuple[Edge, ...]:
    """Return the frontier as straight lines, out to both edges: slower or larger is always possible.

    It goes through the points that no other is both left of and below; other rows of the frontier cannot be told from
    these.
    """
    corners = [(x, -y) for x, y in lower_left((point.x, -point.y) for point in points)]
    if not corners:
        return ()
    path = [*stairs([(corners[0][0], float(TOP - 20)), *corners]), (100.0, corners[-1][1])]
    return tuple(Edge(x1=x0, y1=y0, x2=x1, y2=y1) for (x0, y0), (x1, y1) in pairwise(path))


def _named(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Return the points, the most important last and so on top, each with its name if that overlaps nothing."""
    by_kind = sorted(points, key=lambda point: KINDS.index(point.kind))
    for width, is_for_wide in ((NARROW, False), (WIDE, True)):
        taken = [_box(point, point.side, width) for point in by_kind if point.side]
        for at in reversed(range(len(by_kind))):
            side = None if by_kind[at].side else _side(by_kind[at], taken, points, width)
            if side:
                by_kind[at] = msgspec.structs.replace(by_kind[at], side=side, is_for_wide=is_for_wide)
                taken.append(_box(by_kind[at], side, width))
    return tuple(by_kind)


def _side(point: FrontierPoint, taken: Sequence[Box], points: Sequence[FrontierPoint], width: int) -> str | None:
    """Return the side on which the name meets no other name and no other point; None if there is none."""
    neighbours = [neighbour for neighbour in points if abs(neighbour.x - point.x) > SAME or neighbour.y != point.y]
    marks = [Box.centered(neighbour.x * width / 100, neighbour.y, 2 * MARK, 2 * MARK) for neighbour in neighbours]
    boxes = {_box(point, side, width): side for side in SIDES}
    box = next(free(boxes, frame=Box(0, -inf, width, inf), taken=(*taken, *marks)), None)
    return boxes[box] if box else None


def _box(point: FrontierPoint, side: str, width: int) -> Box:
    across, down = SIDES[side]
    x, y, long = point.x * width / 100 + across, point.y + down, LETTER * len(point.name)
    left, right = (x, x + long) if across > 0 else (x - long, x)
    return Box(left, y - LINE + 4, right, y + 4)
