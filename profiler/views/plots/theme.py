"""The look of every plot: its style, colors, names, titles, axes and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import textalloc
from cycler import cycler
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from profiler.analysis import live_bytes
from profiler.analysis.advice import device_memory
from profiler.analysis.rows import Row
from profiler.core import trace_data
from profiler.core.plan_file import strategy_label
from profiler.core.trace_data import BUCKETS, GATHERED, WORKSPACES
from profiler.core.units import bytes_text
from profiler.views.sanitize import plain, short
from profiler.views.tables import broken
from profiler.views.tables.columns import shared
from profiler.views.tables.explanation import CATEGORIES

FONT = 11.0  # points: the type size for which all lengths in the plots are given
EM = 0.62  # letter width over type size: wider than nearly every text in DejaVu Sans
INK, GREY, FAINT = "#222222", "#767676", "#E4E4E4"
# Okabe and Ito (2008), distinct for all kinds of color vision
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
# distinct in grayscale too: lightness from 20 to 84 of 100, any two at least 11 apart
IN_GREY = ("#0A2F5C", "#E8A33A", "#2A8059", "#B4D7F1", "#92330A", "#B07FB5")

BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE = "C0", "C1", "C2", "C3", "C4", "C5"  # as the style at work defines them
LINE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)  # what is out of memory is vermillion
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
NOT_FROM_ZERO = "axis does not start at 0"
STEPS = [1.0, 2.0, 2.5, 5.0, 10.0]  # between ticks, times a power of ten
PLAIN = StrMethodFormatter("{x:,g}")
Pair = tuple[float, float]


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """The style of a picture for one use. Lengths are in inches, type in points."""

    suffix: str  # of the file, if none is named
    type_points: float = FONT
    width: float | None = None  # of the whole picture; None: the usual width of the plot
    ratio: float | None = None  # of width to height
    max_columns: int = 3  # panels beside each other
    dpi: int = 200  # of a png
    pixels: int | None = None  # width of a png, which then sets its dpi
    colours: tuple[str, ...] = OKABE_ITO


STYLES = {
    "default": Style(suffix="png"),
    "slides": Style(suffix="png", type_points=16.0, width=40 / 3, ratio=16 / 9, max_columns=2, pixels=1920),
    "paper": Style(suffix="pdf", type_points=7.5, width=3.35, max_columns=1, dpi=400, colours=IN_GREY),
}
USUAL = STYLES["default"]


@contextmanager
def at_work(style: Style) -> Iterator[None]:
    """Context manager that sets matplotlib to a style; both drawing and saving must happen within it."""
    sizes = {
        "font.size": FONT, "axes.titlesize": FONT + 2, "axes.labelsize": FONT, "xtick.labelsize": FONT - 1,
        "ytick.labelsize": FONT - 1, "legend.fontsize": FONT - 1, "figure.titlesize": FONT + 2,
        "xtick.major.size": 3, "ytick.major.size": 3, "grid.linewidth": 0.8, "lines.linewidth": 1.5,
        "lines.markersize": 6, "figure.constrained_layout.w_pad": 0.12, "figure.constrained_layout.h_pad": 0.08,
    }  # fmt: skip
    settings: dict[Any, Any] = {name: size * style.type_points / FONT for name, size in sizes.items()} | {
        "axes.prop_cycle": cycler(color=style.colours), "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": GREY, "axes.labelcolor": INK, "axes.grid": True, "axes.axisbelow": True,
        "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.titleweight": "bold", "figure.titleweight": "bold",
        "figure.dpi": 100,  # of the layout
        "grid.color": FAINT, "legend.frameon": False, "legend.handletextpad": 0.5, "legend.columnspacing": 1.6,
        "pdf.fonttype": 42,  # TrueType, embedded: journals refuse matplotlib's own Type 3
        "svg.hashsalt": "gcprof",  # else the ids in a file are random
        "text.color": INK,
        "text.parse_math": False,  # names may contain a $
        "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    }  # fmt: skip
    with rc_context(settings):
        yield


def sized(usual: float) -> float:
    """Return a length, given for the type size FONT, scaled to the style at work."""
    return float(usual * rcParams["font.size"] / FONT)


def name(row: Row) -> str:
    """Return the strategy as one short line."""
    return short(strategy_label(row.case.label), LONGEST_NAME)


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


def area(usual: float) -> float:
    """Return the area of a marker in square points, scaled to the style at work."""
    return sized(sized(usual))


def note(axes: Axes, text: str, at: Pair, *, offset: Pair, size: float = FONT - 1, **more: Any) -> Annotation:
    """Write a text at an offset in points from a position; `more` is passed to matplotlib's `annotate`."""
    beside = (sized(offset[0]), sized(offset[1]))
    return axes.annotate(text, at, xytext=beside, textcoords="offset points", fontsize=sized(size), **more)


def title(axes: Axes, rows: Sequence[Row], *, inches: float) -> None:
    """Write the model, and below it what else the rows share; a setting that varies is an axis and is left out."""
    model, *others = shared(rows)
    above = _wrapped([model], inches, (FONT + 2) * 1.1)  # bold is wider
    below = _wrapped(others, inches, FONT - 1)
    high = (below.count("\n") + 1) * (FONT - 1) * 1.25  # points that the lines below take
    axes.set_title(above, pad=sized(12 + high))
    note(axes, below, (0, 1), offset=(0, 8), color=GREY, xycoords="axes fraction")


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
) -> None:
    """Write the labels where they meet no other label, no point and no edge and, if there is room, no line.

    `others` are points without a label. The figure's layout must be final. Earlier labels have the first choice.
    """
    points = [*((label.x, label.y) for label in labels), *others]
    drawn = [list(line) for line in lines if line]
    if sum(map(len, drawn)) > MOST_CORNERS:
        drawn = []
    for must, farthest, candidates in ((True, 0.8, 800), (False, 0.06, 100)):
        some = [label for label in labels if label.must is must][: None if must else MOST_OPTIONAL]
        if not some:
            continue
        obstacles: dict[str, Any] = {
            f"{axis}_lines": [[point[at] for point in line] for line in drawn] for at, axis in enumerate("xy")
        }
        with redirect_stdout(StringIO()):  # it prints where it found no room
            _, _, texts, _ = textalloc.allocate(
                axes, [label.x for label in some], [label.y for label in some], [label.text for label in some],
                x_scatter=[x for x, _ in points], y_scatter=[y for _, y in points], **(obstacles if drawn else {}),
                textsize=sized(FONT - 1.5), fontweight=[label.weight for label in some], textcolor=INK,
                linecolor=GREY, linewidth=sized(0.6), min_distance=0.012, max_distance=farthest,
                nbr_candidates=candidates, draw_all=must, margin=0.004,
            )  # fmt: skip
        for text in texts:
            if isinstance(text, Text):
                box = text.get_window_extent()  # a line over the box of a text, which no later label can then meet
                corners = [(box.x0, box.y0), (box.x1, box.y1), (box.x1, box.y0), (box.x0, box.y1), (box.x0, box.y0)]
                drawn.append([(float(x), float(y)) for x, y in axes.transData.inverted().transform(corners)])


def stairs(points: Sequence[Pair]) -> list[Pair]:
    """Return the corners of a step line through the points, which goes first across, then up or down."""
    corners = [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        corners += [(x1, y0), (x1, y1)] if x1 != x0 else [(x1, y1)]
    return corners
