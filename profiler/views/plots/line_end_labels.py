"""Names at the right ends of lines, in a column and in the lines' order: knows nothing of what is named."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation

from profiler.views.plots.labels import Label
from profiler.views.plots.style import sized
from profiler.views.plots.theme import FONT, GREY, INK

GAP, BETWEEN = 14.0, 3.0  # pixels from a point to its name, and between names
WIDE = 0.62  # em, of a letter


def share(axes: Axes, texts: Sequence[str]) -> float:
    """The part of the axes' width that these names take beside each other's points; at most two thirds."""
    longest = max(len(line) for text in texts for line in text.split("\n"))
    inches = sized(FONT - 1.5) / 72 * WIDE * longest + sized(GAP) / axes.figure.dpi
    return float(min(2 / 3, inches / (axes.get_window_extent().width / axes.figure.dpi)))


def write(axes: Axes, labels: Sequence[Label]) -> list[Annotation]:
    """Write each name to the right of its point, moved up or down where another is in its way.

    The figure's layout must be final; more names than fit below each other are written closer together.
    """
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg), "plot.py gives every figure Agg's canvas"
    ordered = sorted(labels, key=lambda label: label.y)
    pixels = [axes.transData.transform((label.x, label.y)) for label in ordered]
    written = [_write(axes, label) for label in ordered]
    heights = [text.get_window_extent(canvas.get_renderer()).height + sized(BETWEEN) for text in written]
    frame = axes.get_window_extent()
    middles = spread([float(y) for _, y in pixels], heights, low=float(frame.y0), high=float(frame.y1))
    column = max((float(x) for x, _ in pixels), default=0.0) + sized(GAP)
    points = 72 / axes.figure.dpi
    for text, (x, y), middle in zip(written, pixels, middles, strict=True):
        text.set_position(((column - x) * points, (middle - y) * points))
    return written


def spread(wanted: Sequence[float], heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Middles near the wanted ones, which rise, so that nothing overlaps and all lie between low and high.

    Where there is no room for that, they are spread evenly.
    """
    if not wanted:
        return []
    if sum(heights) > high - low:
        step = (high - low) / len(wanted)
        return [low + step * (number + 0.5) for number in range(len(wanted))]
    gaps = [(one + other) / 2 for one, other in pairwise(heights)]
    found = [max(wanted[0], low + heights[0] / 2)]
    for middle, gap in zip(wanted[1:], gaps, strict=True):  # upwards, each as high as the one below it asks for
        found.append(max(middle, found[-1] + gap))
    found[-1] = min(found[-1], high - heights[-1] / 2)
    for at in range(len(found) - 2, -1, -1):  # and down again from the top
        found[at] = min(found[at], found[at + 1] - gaps[at])
    return found


def _write(axes: Axes, label: Label) -> Annotation:
    size = sized(FONT - 1.5)
    keywords: dict[str, Any] = {"parse_math": False, "fontsize": size, "color": INK, "weight": label.weight}
    line = {"arrowstyle": "-", "color": GREY, "linewidth": sized(0.6), "shrinkA": 0, "shrinkB": sized(4)}
    return axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(0, 0),
        textcoords="offset points",
        ha="left",
        va="center",
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": sized(1), "alpha": 0.85},
        arrowprops={**line, "relpos": (0, 0.5)},
        **keywords,
    )
