"""The look of every plot: its style, panels, legend, colors, names, titles, axes and labels, and its file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, StringIO
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import textalloc
from cycler import cycler
from matplotlib import rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from profiler.analysis import live_bytes
from profiler.analysis.memory_fit import device_memory
from profiler.analysis.rows import Row
from profiler.core import trace_data
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.trace_data import BUCKETS, GATHERED, WORKSPACES
from profiler.core.units import bytes_text
from profiler.views.export.files import refuse_output, write_whole
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import batch, environment_of, model, one_strategy, setting
from profiler.views.tables.evidence import device, device_word
from profiler.views.tables.explanation import CATEGORIES
from profiler.views.tables.grid import broken

FONT = 11.0  # points: the type size for which all lengths in the plots are given
EM = 0.62  # letter width over type size: wider than nearly every text in DejaVu Sans
INK, GREY, FAINT = "#222222", "#767676", "#E4E4E4"
# Okabe and Ito (2008), distinct for all kinds of color vision
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
# distinct in grayscale too: lightness from 20 to 84 of 100, any two at least 11 apart
IN_GREY = ("#0A2F5C", "#E8A33A", "#2A8059", "#B4D7F1", "#92330A", "#B07FB5")

SUFFIXES = ("png", "svg", "pdf")
AROUND = 1.9  # inches of a panel's height above and below its axes, if titles are short
MOST = 24  # panels; in a picture of more, nothing would be legible
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


Panel = Callable[[Axes], Callable[[], object] | None]  # draws; returns what to call once the layout is final, or None


def picture(
    panels: Sequence[Panel],
    heights: Sequence[float],
    *,
    width: float,
    columns: int = 1,
    ratio: float | None = None,
    title: str = "",
    is_shared: bool = False,
    around: float = 0.0,
) -> Figure:
    """Return a figure of these panels, laid out, with one legend below them; the style must be at work.

    `heights` are the inches of each line of `columns` panels. With `is_shared`, all panels have the same axes,
    and `around` are the inches of the titles, labels and legend outside of them.
    """
    size = width, sum(heights) + around
    if ratio is not None:  # the smallest size of that ratio that holds the panels
        size = max(size[0], size[1] * ratio), max(size[0] / ratio, size[1])
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(
        len(heights), columns, squeeze=False, sharex=is_shared, sharey=is_shared, height_ratios=heights
    )
    axes = list(cells.flat)
    for spare in axes[len(panels) :]:
        spare.remove()
    if title:
        lines = broken(plain(title), int(width * 72 / sized((FONT + 2) * EM * 1.07)))
        figure.suptitle("\n".join(lines), x=0.01, ha="left")
    finishers = [draw(panel_axes) for draw, panel_axes in zip(panels, axes, strict=False)]
    legend_below(figure, axes[: len(panels)])
    figure.draw_without_rendering()  # the layout is computed here
    if ratio is None and not is_shared:
        _make_room(figure, axes[: len(panels) : columns], heights)
    figure.set_layout_engine("none")  # and frozen
    for finish in finishers:
        if finish:
            finish()
    return figure


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, below them."""
    handles: dict[str, Artist] = {}
    for panel_axes in axes:
        for handle, label in zip(*panel_axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = int(figure.get_figwidth() * 72 / sized((FONT - 1) * EM)) - 6  # letters beside an entry's mark
    labels = ["\n".join(broken(label, longest)) for label in handles]
    for num_columns in (5, 4, 3, 2, 1) if handles else ():  # as many columns as there is room for
        legend = figure.legend(list(handles.values()), labels, loc="outside lower left", ncols=num_columns)
        if num_columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def _make_room(figure: Figure, axes: Sequence[Axes], heights: Sequence[float]) -> None:
    """Make the figure taller by the height that long titles and legends took from the panels."""
    drawn = [panel_axes.get_window_extent().height / figure.dpi for panel_axes in axes]
    missing = sum(max(0.0, high - sized(AROUND) - now) for high, now in zip(heights, drawn, strict=True))
    if missing > sized(0.2):
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + missing)
        figure.draw_without_rendering()


def num_lines(num_panels: int, most_columns: int) -> tuple[int, int]:
    """Return in how many lines of how many columns panels stand."""
    lines = ceil(num_panels / most_columns)
    return lines, ceil(num_panels / lines)


def refuse(path: Path, *, force: bool) -> None:
    """Raise UserError if a picture cannot be written there: for another suffix, or as `refuse_output` does."""
    if path.suffix.lower().removeprefix(".") not in SUFFIXES:
        raise UserError(f"cannot draw '{path.name}'", hint=f"name a file that ends in .{', .'.join(SUFFIXES)}")
    refuse_output(path, force=force)


def save(figure: Figure, *, path: Path, force: bool, style: Style = USUAL) -> Path:
    """Write a figure in the format of its suffix; equal figures give equal bytes."""
    suffix = path.suffix.lower().removeprefix(".")
    text = BytesIO()
    metadata = {} if suffix == "png" else {"CreationDate" if suffix == "pdf" else "Date": None}
    with at_work(style):
        dpi = style.dpi if style.pixels is None else (style.pixels + 0.01) / figure.get_figwidth()
        figure.savefig(text, format=suffix, dpi=dpi, metadata=metadata)
    return write_whole(path, text.getvalue(), force=force)


def name(row: Row) -> str:
    """Return the strategy as one short line."""
    return shortened(strategy_label(row.case.label))


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
        return f"predicted for {device_word(asked)}, not measured"
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
