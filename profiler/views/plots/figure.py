"""How every picture is set up: its style, its panels, one legend below them, and its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
from cycler import cycler
from matplotlib import rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.core.errors import UserError
from profiler.views.export.files import refuse_output, write_whole
from profiler.views.sanitize import plain
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
