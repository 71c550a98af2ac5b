"""Pictures drawn by matplotlib: kinds of plot and their panels, and how every picture is laid out, styled and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.analysis import axes
from profiler.analysis.axes import STRATEGY
from profiler.analysis.rows import Row
from profiler.core.errors import UserError, load_function
from profiler.views import PLOTS
from profiler.views.export import refuse_output, write_whole
from profiler.views.plots import theme
from profiler.views.plots.theme import EM, FONT, USUAL, Style, at_work, sized
from profiler.views.sanitize import plain
from profiler.views.tables import broken
from profiler.views.tables.columns import groups
from profiler.views.tables.details import space_of

Panels = list[list[Row]]


class Plot(NamedTuple):
    """One kind of plot."""

    panels: Callable[[Sequence[Row], Sequence[str]], Panels]  # the rows of each panel, over the axes that were named
    has: Callable[[Row], bool]  # whether a row has the numbers that are drawn
    height: Callable[[Sequence[Row], float], float]  # inches that a panel of these rows needs at this width
    # draws a panel; the second argument is the rows of all panels. Returns a function to call once the layout is final
    draw: Callable[[Axes, Sequence[Row], Sequence[Row]], Callable[[], object] | None]
    needs: str  # the numbers that are drawn, in words
    width: float = 8.5  # inches of a panel
    is_beside: bool = False  # whether panels stand beside each other


def alike(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that may be compared: they differ in the strategy alone."""
    if over:
        raise UserError("--over has no effect on this kind of plot", hint="heat and growth are over axes")
    return groups(rows)


def curves(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that differ in the strategy and in one numeric setting."""
    space = space_of(rows)
    chosen = axes.rising(space, over)
    panels = axes.groups_over(rows, space, [STRATEGY, chosen.name])
    return [panel for panel in panels if len({space.at(row.case, chosen) for row in panel}) > 1]


def batches(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that differ in the strategy and in the batch size."""
    if over:
        raise UserError("--over has no effect on throughput", hint="it is over the batch sizes and the strategies")
    return axes.groups_over(rows, space_of(rows), [STRATEGY, "batch_size"])


SUFFIXES = ("png", "svg", "pdf")
AROUND = 1.9  # inches of a panel's height above and below its axes, if titles are short
MOST = 24  # panels; in a picture of more, nothing would be legible

Panel = Callable[[Axes], Callable[[], object] | None]  # draws; returns what to call once the layout is final, or None


def plot(
    rows: Sequence[Row], *, kind: str, path: Path, force: bool = False, style: Style = USUAL, over: Sequence[str] = ()
) -> Path:
    """Draw one of PLOTS into a png, svg or pdf; `over` names the axes of plots that have a choice.

    Raises UserError for another suffix, for a file that exists, without `force`, and if no row has the numbers.
    """
    return write(partial(draw, rows, kind=kind, style=style, over=over), path=path, force=force, style=style)


def write(figure: Callable[[], Figure], *, path: Path, force: bool, style: Style = USUAL) -> Path:
    """Draw a figure and write it in the format of its suffix; equal figures give equal bytes.

    Raises UserError, before the work of drawing it, for another suffix, and for a file that exists, without `force`.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        raise UserError(f"cannot draw '{path.name}'", hint=f"name a file that ends in .{', .'.join(SUFFIXES)}")
    refuse_output(path, force=force)
    text = BytesIO()
    metadata = {} if suffix == "png" else {"CreationDate" if suffix == "pdf" else "Date": None}
    with at_work(style):
        drawn = figure()
        dpi = style.dpi if style.pixels is None else (style.pixels + 0.01) / drawn.get_figwidth()
        drawn.savefig(text, format=suffix, dpi=dpi, metadata=metadata)
    return write_whole(path, text.getvalue(), force=force)


def draw(
    rows: Sequence[Row], *, kind: str, style: Style = USUAL, over: Sequence[str] = (), has_titles: bool = True
) -> Figure:
    """Return the figure, laid out. Raises UserError if no row has the numbers, or for too many panels."""
    view: Plot = load_function(PLOTS[kind])
    panels = [panel for panel in view.panels(rows, over) if any(view.has(row) for row in panel)]
    if not panels:
        hint = "`gcprof show` says which numbers there are"
        if any(row.evidence == "rehearsed" for row in rows):
            hint = "a rehearsal gives bytes alone: --kind memory draws them, `gcprof predict` estimates times"
        raise UserError(f"nothing to plot: no row has {view.needs}", hint=hint)
    if len(panels) > MOST:
        hint = f"one holds {MOST}; --kind heat, growth and throughput show many cases in one panel"
        raise UserError(f"{len(panels)} panels are too many for one picture", hint=hint)
    with at_work(style):
        lines = ceil(len(panels) / (style.max_columns if view.is_beside else 1))
        columns = ceil(len(panels) / lines)
        usual = (view.width if columns == 1 else 0.85 * view.width) * sized(1)
        width = style.width / columns if style.width else usual
        high = [sized(view.height(panel, width / sized(1))) for panel in panels]
        heights = [max(high[line * columns : (line + 1) * columns]) for line in range(lines)]
        among = [row for panel in panels for row in panel]

        def draw_panel(axes: Axes, panel: Sequence[Row]) -> Callable[[], object] | None:
            if has_titles:
                names = 0.5 + max(len(theme.name(row)) for row in panel) * (FONT - 1) * EM / 72  # beside bars
                theme.title(axes, panel, inches=width - sized(1.2 if view.is_beside else max(1.2, names)))
            finish = view.draw(axes, panel, among)
            theme.tell_start(axes)
            return finish

        drawn = [partial(draw_panel, panel=panel) for panel in panels]
        return picture(drawn, heights, width=width * columns, columns=columns, ratio=style.ratio)


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
    _legend_below(figure, axes[: len(panels)])
    figure.draw_without_rendering()  # the layout is computed here
    if ratio is None and not is_shared:  # long titles and legends took height from the panels: it is added
        drawn = [panel_axes.get_window_extent().height / figure.dpi for panel_axes in axes[: len(panels) : columns]]
        missing = sum(max(0.0, high - sized(AROUND) - now) for high, now in zip(heights, drawn, strict=True))
        if missing > sized(0.2):
            figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + missing)
            figure.draw_without_rendering()
    figure.set_layout_engine("none")  # and frozen
    for finish in finishers:
        if finish:
            finish()
    return figure


def _legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
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
