"""Geometry of charts: where ticks, lines and labels go. Pure arithmetic, shared by the plots and the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from math import ceil, cos, floor, hypot, log10, pi, sin
from typing import NamedTuple

import msgspec

MOST_TICKS = 5
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # between ticks, times a power of ten
TICK_TEXT = "{x:,g}"
DOT_GAP = 4  # pixels between the dots that represent a line in `Occupied`
CHOICES = 24  # free boxes that are compared, the nearest ones; the label takes the one that covers the fewest dots
Pair = tuple[float, float]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One tick of an axis."""

    at: float
    text: str


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A linear map from values (low to high) to positions in a picture (start to end); `start` may be beyond `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value, rounded to a hundredth."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> tuple[Tick, ...]:
        """Return ticks at round numbers within the range, at most MOST_TICKS + 1."""
        least = (self.high - self.low) / MOST_TICKS
        power = 10.0 ** floor(log10(least))
        step = next(step * power for step in STEPS if step * power >= least * (1 - 1e-9))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        return tuple(Tick(at=self.at(value), text=TICK_TEXT.format(x=value)) for value in values)


def around(values: Iterable[float], *, start: float, end: float, from_zero: bool = False) -> Scale:
    """Return a scale that spans these values, and zero with `from_zero`; an empty range is widened."""
    numbers = list(values)
    low, high = (0.0 if from_zero else min(numbers)), max(numbers)
    if low == high:
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if high else (0.0, 1.0)
    return Scale(low=low, high=high, start=start, end=end)


def memory_floor(peaks: Sequence[float]) -> float:
    """Return where a memory axis starts: at zero, or a little below the lowest peak if all peaks are close together."""
    low, high = min(peaks), max(peaks)
    return low - 0.3 * (high - low) if 0.7 * high < low < high else 0.0


def stairs(points: Sequence[Pair]) -> list[Pair]:
    """Return the corners of a step line through the points, which goes first across, then up or down."""
    corners = [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        corners += [(x1, y0), (x1, y1)] if x1 != x0 else [(x1, y1)]
    return corners


def lower_left(points: Iterable[Pair]) -> list[Pair]:
    """Return the Pareto frontier of the points, those that no other is both left of and below, from left to right."""
    kept: list[Pair] = []
    for point in sorted(set(points)):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


class Box(NamedTuple):
    """A rectangle, edges included: boxes that share an edge meet, and a point on an edge is inside."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def centered(cls, x: float, y: float, width: float, height: float) -> Box:
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        return self.y1 - self.y0

    def meets(self, other: Box) -> bool:
        return self.x0 <= other.x1 and other.x0 <= self.x1 and self.y0 <= other.y1 and other.y0 <= self.y1

    def holds(self, point: Pair) -> bool:
        return self.x0 <= point[0] <= self.x1 and self.y0 <= point[1] <= self.y1

    def is_inside(self, frame: Box) -> bool:
        return self.x0 >= frame.x0 and self.x1 <= frame.x1 and self.y0 >= frame.y0 and self.y1 <= frame.y1

    def nearest(self, point: Pair) -> Pair:
        """Return the point of the box that is nearest to `point`."""
        return min(max(point[0], self.x0), self.x1), min(max(point[1], self.y0), self.y1)


class Occupied(msgspec.Struct, frozen=True, kw_only=True):
    """What a picture contains so far; a placed label is added to `names`, and its leader line to `ink`."""

    frame: Box
    marks: list[Box]
    names: list[Box]
    ink: list[Pair]  # dots along every line


def free(boxes: Iterable[Box], *, frame: Box, taken: Sequence[Box]) -> Iterator[Box]:
    """Return the boxes inside the frame that meet no taken box, in their order."""
    return (box for box in boxes if box.is_inside(frame) and not any(box.meets(other) for other in taken))


def choose(boxes: Iterable[Box], point: Pair, occupied: Occupied, *, far: float, must: bool) -> Box | None:
    """Return the best of the first CHOICES free boxes; None if no box is free.

    The best one covers the fewest dots of lines, and its leader, which it has if it is farther than `far` from the
    point, crosses the fewest labels. Without `must`, boxes whose leader crosses a label are left out.
    """

    def crossed(box: Box) -> int:
        return sum(name.holds(dot) for dot in leader(point, box, far=far) for name in occupied.names)

    def covered(box: Box) -> int:
        return sum(map(box.holds, occupied.ink))

    candidates = free(boxes, frame=occupied.frame, taken=(*occupied.marks, *occupied.names))
    if not must:
        candidates = (box for box in candidates if not crossed(box))
    return min(islice(candidates, CHOICES), key=lambda box: covered(box) + crossed(box), default=None)


def leader(point: Pair, box: Box, *, far: float) -> list[Pair]:
    """Return dots along the leader line from a point to the box of its label; none if the box is within `far`."""
    near = box.nearest(point)
    return dotted([point, near]) if hypot(near[0] - point[0], near[1] - point[1]) > far else []


def dotted(corners: Sequence[Pair]) -> list[Pair]:
    """Return points about every DOT_GAP pixels along a line."""
    dots = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        steps = max(1, int(hypot(x1 - x0, y1 - y0) / DOT_GAP))
        dots += [(x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps) for step in range(steps + 1)]
    return dots


def rings(point: Pair, width: float, height: float, radii: Iterable[float]) -> Iterator[Box]:
    """Yield boxes in widening rings around the point, the right side first."""
    x, y = point
    for radius in radii:
        for step in (0, 1, -1, 4, 2, -2, 3, -3):  # eighths of a turn: right, above right, below right, left, ...
            across, up = cos(step * pi / 4), sin(step * pi / 4)
            yield Box.centered(x + across * (radius + width / 2), y + up * (radius + height / 2), width, height)


def everywhere(point: Pair, width: float, height: float, frame: Box) -> Iterator[Box]:
    """Yield boxes all over the frame, those nearest to the point first."""
    centers = [
        (frame.x0 + width / 2 + column * width / 4, frame.y0 + height / 2 + row * height / 2)
        for column in range(int(max(0.0, frame.width - width) / (width / 4)) + 1)
        for row in range(int(max(0.0, frame.height - height) / (height / 2)) + 1)
    ]
    for x, y in sorted(centers, key=lambda center: hypot(center[0] - point[0], center[1] - point[1])):
        yield Box.centered(x, y, width, height)


def without_overlap(wanted: Sequence[float], heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Return centers near the wanted ones, which are ascending, without overlap and all between low and high.

    If there is not enough room, they are spread evenly.
    """
    if not wanted:
        return []
    if sum(heights) > high - low:
        step = (high - low) / len(wanted)
        return [low + step * (number + 0.5) for number in range(len(wanted))]
    gaps = [(below + above) / 2 for below, above in pairwise(heights)]
    middles = [max(wanted[0], low + heights[0] / 2)]
    for middle, gap in zip(wanted[1:], gaps, strict=True):  # upwards: push each above the one below it
        middles.append(max(middle, middles[-1] + gap))
    middles[-1] = min(middles[-1], high - heights[-1] / 2)
    for at in range(len(middles) - 2, -1, -1):  # downwards: push each below the one above it
        middles[at] = min(middles[at], middles[at + 1] - gaps[at])
    return middles
