"""The look of every plot: colors, names, titles, axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from profiler.analysis.rows import Row
from profiler.core.strategy_label import strategy_label
from profiler.views.geometry import STEPS, TICK_TEXT
from profiler.views.plots.style import MADE_FOR, sized
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import batch, environment_of, model, one_strategy, setting
from profiler.views.tables.evidence import device
from profiler.views.tables.grid import broken

BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE = "C0", "C1", "C2", "C3", "C4", "C5"  # as the current style defines them
INK, GREY, FAINT = "#222222", "#767676", "#E4E4E4"
FONT = MADE_FOR
LONGEST_NAME = 44
BOLD = 1.1  # how many times wider bold text is
EM = 0.62  # letter width over type size: wider than nearly every text in DejaVu Sans
MOST_LINES = 6  # of a title
NOT_FROM_ZERO = "not from 0"


def name(row: Row) -> str:
    """Return the strategy as one short line, to be drawn with `parse_math` off."""
    return shortened(strategy_label(row.case.strategy))


def shortened(value: object) -> str:
    """Return any value as one short line."""
    return short(value, LONGEST_NAME)


def plain_axes(axes: Axes, *, grid: Literal["both", "x", "y"] = "both") -> None:
    """Style the axes: two spines, a faint grid, short ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=sized(FONT - 1), length=sized(3), color=GREY)
    axes.grid(axis=grid, color=FAINT, linewidth=sized(0.8))
    axes.set_axisbelow(True)


def number_axis(axis: Axis, *, most: int = 6) -> None:
    """Put plain numbers at round values of an axis, at most `most` + 1."""
    axis.set_major_locator(MaxNLocator(most, steps=list(STEPS)))
    axis.set_major_formatter(StrMethodFormatter(TICK_TEXT))


def tell_start(axes: Axes) -> None:
    """Note in the label of a numeric axis that it does not begin at zero, since differences look larger then."""
    for axis, (start, _) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if isinstance(axis.get_major_locator(), MaxNLocator) and axis.get_label_text() and start > 0:
            axis.set_label_text(f"{axis.get_label_text()}, {NOT_FROM_ZERO}")


def log_axis(axis: Axis) -> None:
    """Put plain numbers at 1, 2 and 5 of every decade of an axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter(TICK_TEXT))
    axis.set_minor_locator(NullLocator())


def names_width(rows: Sequence[Row]) -> float:
    """Return the width in inches of the strategy names beside the axes."""
    return sized(0.5 + max(len(name(row)) for row in rows) * (FONT - 1) * EM / 72)


def area(usual: float) -> float:
    """Return the area of a marker in square points, scaled to the current style."""
    return sized(sized(usual))


def legend_square(axes: Axes, label: str, colour: str) -> None:
    """Add a legend entry for bars of this color."""
    axes.scatter([], [], s=area(110), marker="s", color=colour, label=label)


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend for all panels, below them."""
    handles: dict[str, Artist] = {}
    for panel_axes in axes:
        for handle, label in zip(*panel_axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = int(figure.bbox.width * 72 / figure.dpi / sized((FONT - 1) * EM)) - 6  # letters beside an entry's mark
    labels = ["\n".join(broken(label, longest)) for label in handles]
    for num_columns in (5, 4, 3, 2, 1) if handles else ():  # as many columns as there is room for
        legend = figure.legend(
            list(handles.values()),
            labels,
            loc="outside lower left",
            ncols=num_columns,
            frameon=False,
            fontsize=sized(FONT - 1),
            handletextpad=0.5,
            columnspacing=1.6,
        )
        if num_columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def note(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    *,
    offset: tuple[float, float],
    size: float = FONT - 1,
    color: str = INK,
    **more: Any,
) -> Annotation:
    """Write a text at an offset in points from a position; `more` is passed to matplotlib's `annotate`."""
    beside = (sized(offset[0]), sized(offset[1]))
    return axes.annotate(text, at, xytext=beside, textcoords="offset points", fontsize=sized(size), color=color, **more)


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
    above, below = (
        ", ".join([model(rows), *batches, *one_strategy(rows)]),
        ", ".join([*with_what, _where(rows), *torch]),
    )
    lines = [_wrapped(above, inches, (FONT + 2) * BOLD), _wrapped(below, inches, FONT - 1)]
    high = (lines[1].count("\n") + 1) * (FONT - 1) * 1.25  # points that the lines below take
    axes.set_title(
        lines[0],
        loc="left",
        fontsize=sized(FONT + 2),
        color=INK,
        weight="bold",
        parse_math=False,
        pad=sized(12 + high),
    )
    note(axes, lines[1], (0, 1), offset=(0, 8), color=GREY, xycoords="axes fraction", parse_math=False)


def _where(rows: Sequence[Row]) -> str:
    """Return the device that the rows ran on or were predicted for, in words."""
    environment = environment_of(rows)
    if len({row.case.device for row in rows}) > 1:
        return device(rows)
    name = environment.device_name if environment else None
    asked = rows[0].case.device
    if rows[0].case.is_predicted:
        return f"predicted for {asked}, not measured"
    return device(rows) if rows[0].evidence == "rehearsed" else name or asked


def _wrapped(text: str, inches: float, size: float) -> str:
    """Return the text in lines of this width, broken inside words if need be; too many lines lose their middle."""
    width = max(16, int(inches * 72 / (sized(size) * EM)))
    pieces = broken(plain(text), width)
    lines = [piece[at : at + width] for piece in pieces for at in range(0, max(1, len(piece)), width)]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 2], "…", lines[-1]])
