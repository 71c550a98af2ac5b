"""Names beside points, none over another: the same picture every time. Knows nothing of what is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import cos, hypot, pi, sin
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from profiler.views.plots.style import sized
from profiler.views.plots.theme import FONT, GREY, INK

MARGIN = 2.0  # pixels kept free around every label
POINT = 5.0  # half the side of the square that a marker takes, in pixels
RADII = (9.0, 16.0, 26.0, 38.0, 54.0, 74.0, 100.0, 130.0, 170.0, 220.0, 280.0)
NEAR = 3  # so many of them for a label that may be left out
LEADER = 14.0  # a label further off than this many pixels gets a line to its point
CHOICES = 24  # among so many free places, the nearest ones, a label takes the one that is crossed least
Pair = tuple[float, float]


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a point, in data coordinates. Those that must be there come first in the list."""

    x: float
    y: float
    text: str
    must: bool = True  # else it is left out where there is no room close by
    weight: str = "normal"


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What is taken of the axes so far, in pixels."""

    frame: Bbox
    points: list[Bbox]
    labels: list[Bbox]
    inked: list[Pair]  # dots along every line


def place(
    axes: Axes, labels: Sequence[Label], *, others: Sequence[Pair] = (), lines: Sequence[Sequence[Pair]] = ()
) -> list[Annotation]:
    """Write the labels where they meet neither each other, nor a point, nor the edge; and a line only where it must be.

    `others` are points without a label. The figure's layout must be final. Earlier labels have the first choice.
    """
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg), "plot.py gives every figure Agg's canvas"
    renderer = canvas.get_renderer()
    points = [_pixel(axes, point) for point in (*((label.x, label.y) for label in labels), *others)]
    margin = 2 * sized(MARGIN)
    room = Room(
        frame=axes.get_window_extent(renderer),
        points=[_box(x, y, 2 * sized(POINT), 2 * sized(POINT)) for x, y in points],
        labels=[],
        inked=[pixel for line in lines for pixel in _along([_pixel(axes, point) for point in line])],
    )
    written = []
    for label, pixel in zip(labels, points, strict=False):
        text = _write(axes, label)
        size = text.get_window_extent(renderer)
        box = _choose(room, pixel, width=size.width + margin, height=size.height + margin, must=label.must)
        if box is None:
            text.remove()
            continue
        _move(text, pixel, box, points=72 / axes.figure.dpi)
        room.labels.append(box)
        room.inked.extend(_leader(pixel, box))
        written.append(text)
    return written


def _write(axes: Axes, label: Label) -> Annotation:
    keywords: dict[str, Any] = {
        "parse_math": False,
        "fontsize": sized(FONT - 1.5),
        "color": INK,
        "weight": label.weight,
    }
    return axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(0, 0),
        textcoords="offset points",
        ha="center",
        va="center",
        annotation_clip=False,
        **keywords,
    )


def _choose(room: Room, pixel: Pair, *, width: float, height: float, must: bool) -> Bbox | None:
    """The nearest free box that no line crosses, else the one of the nearest that is crossed least."""
    free = [
        box
        for box in _around(pixel, width, height, room.frame, far=must)
        if _inside(box, room.frame) and not any(box.overlaps(other) for other in (*room.points, *room.labels))
    ]
    if not must:  # rather no name than one whose line strikes out another
        free = [box for box in free if not _struck(room, pixel, box)]
    return min(free[:CHOICES], key=lambda box: _inked(room, box) + _struck(room, pixel, box), default=None)


def _inked(room: Room, box: Bbox) -> int:
    """How many dots of lines are in this place."""
    return sum(box.contains(x, y) for x, y in room.inked)


def _struck(room: Room, pixel: Pair, box: Bbox) -> int:
    """How many dots of a leader to this place are in other labels."""
    return sum(label.contains(x, y) for x, y in _leader(pixel, box) for label in room.labels)


def _leader(pixel: Pair, box: Bbox) -> list[Pair]:
    """The line from a far label to its point, dotted; nothing where the label is near."""
    near = _nearest(pixel, box)
    return _along([pixel, near]) if hypot(near[0] - pixel[0], near[1] - pixel[1]) > sized(LEADER) else []


def _nearest(pixel: Pair, box: Bbox) -> Pair:
    return min(max(pixel[0], box.x0), box.x1), min(max(pixel[1], box.y0), box.y1)


def _around(pixel: Pair, width: float, height: float, frame: Bbox, *, far: bool) -> Iterator[Bbox]:
    """Boxes in widening rings around the point, the right side first; at last, any place in the frame by distance."""
    x, y = pixel
    for radius in map(sized, RADII if far else RADII[:NEAR]):
        for step in (0, 1, -1, 4, 2, -2, 3, -3):  # eighths of a turn: right, above right, below right, left, ...
            across, up = cos(step * pi / 4), sin(step * pi / 4)
            yield _box(x + across * (radius + width / 2), y + up * (radius + height / 2), width, height)
    if far:
        places = [
            (frame.x0 + width / 2 + column * width / 4, frame.y0 + height / 2 + row * height / 2)
            for column in range(int(max(0.0, frame.width - width) / (width / 4)) + 1)
            for row in range(int(max(0.0, frame.height - height) / (height / 2)) + 1)
        ]
        for place in sorted(places, key=lambda place: hypot(place[0] - x, place[1] - y)):
            yield _box(*place, width, height)


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_extents(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _inside(box: Bbox, frame: Bbox) -> bool:
    return bool(box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1)


def _move(text: Annotation, pixel: Pair, box: Bbox, *, points: float) -> None:
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    text.set_position(((x - pixel[0]) * points, (y - pixel[1]) * points))
    if _leader(pixel, box):
        near = _nearest(pixel, box)
        line = text.axes.annotate(  # type: ignore[union-attr]  # it was made on axes
            "",
            text.xy,
            xytext=((near[0] - pixel[0]) * points, (near[1] - pixel[1]) * points),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": sized(0.6), "shrinkA": 0, "shrinkB": 4},
        )
        line.set_zorder(1)


def _pixel(axes: Axes, point: Pair) -> Pair:
    x, y = axes.transData.transform(point)
    return float(x), float(y)


def _along(corners: Sequence[Pair]) -> list[Pair]:
    """Points every few pixels along a line."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        steps = max(1, int(hypot(x1 - x0, y1 - y0) / 4))
        found += [(x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps) for step in range(steps + 1)]
    return found
