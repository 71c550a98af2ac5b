"""The look of every plot: colors, names, titles, axes, and where labels go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import Any, NamedTuple

import textalloc
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from profiler.analysis import live_bytes
from profiler.analysis.memory_fit import device_memory
from profiler.analysis.rows import Row
from profiler.core import trace_data
from profiler.core.plan_file import strategy_label
from profiler.core.trace_data import BUCKETS, GATHERED, WORKSPACES
from profiler.core.units import bytes_text
from profiler.views.plots.figure import EM, FONT, GREY, INK, sized
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import batch, environment_of, model, one_strategy, setting
from profiler.views.tables.evidence import device
from profiler.views.tables.explanation import CATEGORIES
from profiler.views.tables.grid import broken

BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE = "C0", "C1", "C2", "C3", "C4", "C5"  # as the style at work defines them
COLOURS = {  # of the categories of live memory, in the order of the stack
    "parameters": GREY,
    "buffers": "#B8B8B8",
    "gradients": VERMILLION,
    "optimizer": GREEN,
    "inputs": "#CC79A7",
    WORKSPACES: INK,
    BUCKETS: "#8A2C66",  # those of several ranks only are darker than their neighbors in the stack
    GATHERED: "#2F6F8F",
    "static": "#4A4A4A",
    "saved": BLUE,
    "recomputed": SKY,
    "temporaries": ORANGE,
    "rest": "#E6B422",
    "live": "#3D7EAA",
}
assert not {*trace_data.CATEGORIES, *live_bytes.CATEGORIES} - set(COLOURS), "every category has its colour"
WORDS = {
    **CATEGORIES,
    "static": "other static memory",
    "rest": "transient",
    "live": "all that is live, kinds not told apart",
}
LONGEST_NAME = 44
MOST_LINES = 6  # of a title
MOST_CORNERS = 400  # of the lines that labels keep off: of more there is no room beside them anyway
MOST_OPTIONAL = 40  # labels that may be left out: of more few would find room, and all would take seconds
NOT_FROM_ZERO = "not from 0"
STEPS = [1.0, 2.0, 2.5, 5.0, 10.0]  # between ticks, times a power of ten
PLAIN = StrMethodFormatter("{x:,g}")
Pair = tuple[float, float]


def name(row: Row) -> str:
    """Return the strategy as one short line."""
    return shortened(strategy_label(row.case.strategy))


def shortened(value: object) -> str:
    """Return any value as one short line."""
    return short(value, LONGEST_NAME)


def number_axis(axis: Axis, *, most: int = 6) -> None:
    """Put plain numbers at round values of an axis, at most `most` + 1."""
    axis.set_major_locator(MaxNLocator(most, steps=STEPS))
    axis.set_major_formatter(PLAIN)


def log_axis(axis: Axis) -> None:
    """Put plain numbers at 1, 2 and 5 of every decade of an axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_locator(NullLocator())


def tell_start(axes: Axes) -> None:
    """Note in the label of a numeric axis that it does not begin at zero, since differences look larger then."""
    for axis, (start, _) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if isinstance(axis.get_major_locator(), MaxNLocator) and axis.get_label_text() and start > 0:
            axis.set_label_text(f"{axis.get_label_text()}, {NOT_FROM_ZERO}")


def memory_floor(peaks: Sequence[float]) -> float:
    """Return where a memory axis starts: at zero, or a little below the lowest peak if all peaks are close together."""
    low, high = min(peaks), max(peaks)
    return low - 0.3 * (high - low) if 0.7 * high < low < high else 0.0


def limit(axes: Axes, rows: Sequence[Row], size: int, *, upright: bool) -> list[Pair]:
    """Draw a line at the device's memory, if that is within the axes; return its ends, or nothing."""
    device_bytes = device_memory(rows)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    low, high = (left, right) if upright else (bottom, top)
    if device_bytes is None or not low < device_bytes / size < high:
        return []
    at, label = device_bytes / size, f"memory of the device: {bytes_text(device_bytes)}"
    draw = axes.axvline if upright else axes.axhline
    draw(at, color=INK, linewidth=sized(1), linestyle=(0, (4, 3)), zorder=1, label=label)
    return [(at, bottom), (at, top)] if upright else [(left, at), (right, at)]


def names_width(rows: Sequence[Row]) -> float:
    """Return the width in inches of the strategy names beside the axes."""
    return sized(0.5 + max(len(name(row)) for row in rows) * (FONT - 1) * EM / 72)


def area(usual: float) -> float:
    """Return the area of a marker in square points, scaled to the style at work."""
    return sized(sized(usual))


def legend_square(axes: Axes, label: str, colour: str) -> None:
    """Add a legend entry for bars of this color."""
    axes.scatter([], [], s=area(110), marker="s", color=colour, label=label)


def note(axes: Axes, text: str, at: Pair, *, offset: Pair, size: float = FONT - 1, **more: Any) -> Annotation:
    """Write a text at an offset in points from a position; `more` is passed to matplotlib's `annotate`."""
    beside = (sized(offset[0]), sized(offset[1]))
    return axes.annotate(text, at, xytext=beside, textcoords="offset points", fontsize=sized(size), **more)


def is_shown(row: Row) -> bool:
    """Whether a row is drawn: only if its outcome is ok, since wrong gradients are no saving."""
    return row.outcome == "ok"


def has_peak(row: Row) -> bool:
    return is_shown(row) and row.readings.peak_bytes is not None


def title(axes: Axes, rows: Sequence[Row], *, inches: float) -> None:
    """Write model and batch, below them settings and device; a setting that varies is an axis and is left out."""
    environment = environment_of(rows)
    batches = [batch(rows[0].case)] if len({row.case.batch_size for row in rows}) == 1 else []
    torch = [f"torch {environment.torch}"] if environment and environment.torch else []
    with_what = [word for word in setting(rows) if word not in batches]
    above = _wrapped([model(rows), *batches, *one_strategy(rows)], inches, (FONT + 2) * 1.1)  # bold is wider
    below = _wrapped([*with_what, _where(rows), *torch], inches, FONT - 1)
    high = (below.count("\n") + 1) * (FONT - 1) * 1.25  # points that the lines below take
    axes.set_title(above, pad=sized(12 + high))
    note(axes, below, (0, 1), offset=(0, 8), color=GREY, xycoords="axes fraction")


def _where(rows: Sequence[Row]) -> str:
    """Return the device that the rows ran on or were predicted for, in words."""
    environment = environment_of(rows)
    if len({row.case.device for row in rows}) > 1:
        return device(rows)
    asked = rows[0].case.device
    if rows[0].case.is_predicted:
        return f"predicted for {asked}, not measured"
    name = environment.device_name if environment else None
    return device(rows) if rows[0].evidence == "rehearsed" else name or asked


def _wrapped(words: Iterable[str], inches: float, size: float) -> str:
    """Return the text in lines of this width, broken inside words if need be; too many lines lose their middle."""
    width = max(16, int(inches * 72 / (sized(size) * EM)))
    pieces = broken(plain(", ".join(words)), width)
    lines = [piece[at : at + width] for piece in pieces for at in range(0, max(1, len(piece)), width)]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 2], "…", lines[-1]])


class Label(NamedTuple):
    """A label of a point, in data coordinates. Earlier labels of a list are placed first."""

    x: float
    y: float
    text: str
    must: bool = True  # else it is left out if there is no room nearby
    weight: str = "normal"


def place(
    axes: Axes, labels: Sequence[Label], *, others: Sequence[Pair] = (), lines: Iterable[Sequence[Pair]] = ()
) -> list[Text]:
    """Write the labels where they meet no other label, no point and no edge and, if there is room, no line.

    `others` are points without a label. The figure's layout must be final. Earlier labels have the first choice.
    """
    points = [*((label.x, label.y) for label in labels), *others]
    drawn, written = [list(line) for line in lines if line], list[Text]()
    if sum(map(len, drawn)) > MOST_CORNERS:
        drawn = []
    for must, farthest, candidates in ((True, 0.8, 800), (False, 0.06, 100)):
        some = [label for label in labels if label.must is must][: None if must else MOST_OPTIONAL]
        if not some:
            continue
        obstacles: dict[str, Any] = {}
        if drawn:
            obstacles = {"x_lines": [[x for x, _ in line] for line in drawn]}
            obstacles["y_lines"] = [[y for _, y in line] for line in drawn]
        with redirect_stdout(StringIO()):  # it prints where it found no room
            _, _, texts, _ = textalloc.allocate(
                axes, [label.x for label in some], [label.y for label in some], [label.text for label in some],
                x_scatter=[x for x, _ in points], y_scatter=[y for _, y in points], **obstacles,
                textsize=sized(FONT - 1.5), fontweight=[label.weight for label in some], textcolor=INK,
                linecolor=GREY, linewidth=sized(0.6), min_distance=0.012, max_distance=farthest,
                nbr_candidates=candidates, draw_all=must, margin=0.004,
            )  # fmt: skip
        found = [text for text in texts if isinstance(text, Text)]
        written += found
        drawn += [_crossed(axes, text) for text in found]
    return written


def _crossed(axes: Axes, text: Text) -> list[Pair]:
    """Return a line over the box of a text, which no later label can then meet."""
    box = text.get_window_extent()
    corners = [(box.x0, box.y0), (box.x1, box.y1), (box.x1, box.y0), (box.x0, box.y1), (box.x0, box.y0)]
    return [(float(x), float(y)) for x, y in axes.transData.inverted().transform(corners)]


def line_end_share(axes: Axes, texts: Sequence[str]) -> float:
    """Return the share of the axes' width that labels with these texts take at line ends; at most two thirds."""
    longest = max(len(line) for text in texts for line in text.split("\n"))
    inches = sized(FONT - 1.5) / 72 * EM * longest + sized(0.14)
    return float(min(2 / 3, inches / (axes.get_window_extent().width / axes.figure.dpi)))


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
