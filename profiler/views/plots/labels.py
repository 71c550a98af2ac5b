"""Place labels beside points and at the right ends of lines, without overlap and deterministically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.text import Annotation

from profiler.views.geometry import Box, Occupied, Pair, choose, dotted, everywhere, leader, rings, without_overlap
from profiler.views.plots.style import sized
from profiler.views.plots.theme import FONT, GREY, note

MARGIN = 2.0  # pixels kept free around every label
MARK = 5.0  # half the side of the square that a marker takes, in pixels
RADII = (9.0, 16.0, 26.0, 38.0, 54.0, 74.0, 100.0, 130.0, 170.0, 220.0, 280.0)
NEAR = 3  # how many of RADII are tried for a label that may be left out
FAR = 14.0  # a label farther away than this many pixels gets a leader line to its point
GAP, BETWEEN = 14.0, 3.0  # pixels from the end of a line to its label, and between labels
WIDE = 0.62  # em: the assumed width of a letter


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A label of a point, in data coordinates. Earlier labels of a list are placed first."""

    x: float
    y: float
    text: str
    must: bool = True  # else it is left out if there is no room nearby
    weight: str = "normal"


def place(
    axes: Axes, labels: Sequence[Label], *, others: Sequence[Pair] = (), lines: Sequence[Sequence[Pair]] = ()
) -> list[Annotation]:
    """Write the labels where they meet no other label, no point and no edge, and cover as few lines as possible.

    `others` are points without a label. The figure's layout must be final. Earlier labels have the first choice.
    """
    renderer = _renderer(axes)
    points = [_pixel(axes, point) for point in (*((label.x, label.y) for label in labels), *others)]
    frame = axes.get_window_extent(renderer)
    occupied = Occupied(
        frame=Box(*map(float, frame.extents)),
        marks=[Box.centered(x, y, 2 * sized(MARK), 2 * sized(MARK)) for x, y in points],
        names=[],
        ink=[dot for line in lines for dot in dotted([_pixel(axes, point) for point in line])],
    )
    written = []
    for label, point in zip(labels, points, strict=False):
        text = _write(axes, label, ha="center")
        box = _box(text, point, occupied, must=label.must)
        if box is None:
            text.remove()
            continue
        _move(axes, text, point, box)
        occupied.names.append(box)
        occupied.ink.extend(leader(point, box, far=sized(FAR)))
        written.append(text)
    return written


def place_at_line_ends(axes: Axes, labels: Sequence[Label]) -> list[Annotation]:
    """Write the labels in one column to the right of all points, moved up or down so that they do not overlap.

    The figure's layout must be final. If there are more labels than fit, they are spread evenly and overlap.
    """
    renderer, frame = _renderer(axes), axes.get_window_extent()
    ordered = sorted(labels, key=lambda label: label.y)
    points = [_pixel(axes, (label.x, label.y)) for label in ordered]
    line = {"arrowstyle": "-", "color": GREY, "linewidth": sized(0.6), "shrinkA": 0, "shrinkB": sized(4)}
    ground = {"facecolor": "white", "edgecolor": "none", "pad": sized(1), "alpha": 0.85}
    written = [
        _write(axes, label, ha="left", bbox=ground, arrowprops={**line, "relpos": (0, 0.5)}) for label in ordered
    ]
    heights = [text.get_window_extent(renderer).height + sized(BETWEEN) for text in written]
    middles = without_overlap([y for _, y in points], heights, low=float(frame.y0), high=float(frame.y1))
    column = max((x for x, _ in points), default=0.0) + sized(GAP)
    scale = 72 / axes.figure.dpi
    for text, (x, y), middle in zip(written, points, middles, strict=True):
        text.set_position(((column - x) * scale, (middle - y) * scale))
    return written


def line_end_share(axes: Axes, texts: Sequence[str]) -> float:
    """Return the share of the axes' width that labels with these texts take at line ends; at most two thirds."""
    longest = max(len(line) for text in texts for line in text.split("\n"))
    inches = sized(FONT - 1.5) / 72 * WIDE * longest + sized(GAP) / axes.figure.dpi
    return float(min(2 / 3, inches / (axes.get_window_extent().width / axes.figure.dpi)))


def _renderer(axes: Axes) -> RendererAgg:
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg), "plot.py gives every figure Agg's canvas"
    renderer: RendererAgg = canvas.get_renderer()
    return renderer


def _pixel(axes: Axes, point: Pair) -> Pair:
    x, y = axes.transData.transform(point)
    return float(x), float(y)


def _write(axes: Axes, label: Label, *, ha: str, **more: Any) -> Annotation:
    how: dict[str, Any] = {"parse_math": False, "ha": ha, "va": "center", "weight": label.weight, **more}
    at = (label.x, label.y)
    return note(axes, label.text, at, offset=(0, 0), size=FONT - 1.5, annotation_clip=False, **how)


def _box(text: Annotation, point: Pair, occupied: Occupied, *, must: bool) -> Box | None:
    """Return the box for a label: near its point, or anywhere in the frame if it must be written; None without room."""
    size, margin = text.get_window_extent(), 2 * sized(MARGIN)
    width, height = float(size.width) + margin, float(size.height) + margin
    near: Iterator[Box] = rings(point, width, height, map(sized, RADII if must else RADII[:NEAR]))
    boxes = chain(near, everywhere(point, width, height, occupied.frame)) if must else near
    return choose(boxes, point, occupied, far=sized(FAR), must=must)


def _move(axes: Axes, text: Annotation, point: Pair, box: Box) -> None:
    """Move a label into its box, with a leader line to its point if that is far."""
    scale = 72 / axes.figure.dpi
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    text.set_position(((x - point[0]) * scale, (y - point[1]) * scale))
    if leader(point, box, far=sized(FAR)):
        near = box.nearest(point)
        line = axes.annotate(
            "",
            text.xy,
            xytext=((near[0] - point[0]) * scale, (near[1] - point[1]) * scale),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": sized(0.6), "shrinkA": 0, "shrinkB": sized(4)},
        )
        line.set_zorder(1)
