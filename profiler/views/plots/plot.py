"""Plot a run of panels, in a style, and save it."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from math import ceil
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.analysis.rows import Row
from profiler.core.errors import UserError
from profiler.core.optional_deps import load_function
from profiler.views import PLOTS
from profiler.views.export.files import refuse_output, write_whole
from profiler.views.plots.panels import Plot
from profiler.views.plots.style import STYLES, Style, at_work, sized
from profiler.views.plots.theme import legend_below, names_width, tell_start, title

SUFFIXES = ("png", "svg", "pdf")
DPI = 100  # of the layout
AROUND = 1.9  # inches of a panel's height above and below its axes, if titles are short
USUAL = STYLES["default"]
MOST = 24  # panels; in a picture of more, nothing would be legible


def plot(
    rows: Sequence[Row], *, kind: str, path: Path, force: bool = False, style: Style = USUAL, over: Sequence[str] = ()
) -> Path:
    """Draw one of PLOTS into a png, svg or pdf; `over` names the axes of plots that have a choice.

    Raises UserError for another suffix, for a file that exists, without `force`, and if no row has the numbers.
    """
    refuse(path, force=force)  # before the work of drawing it
    return save(draw(rows, kind=kind, style=style, over=over), path=path, force=force, style=style)


def draw(rows: Sequence[Row], *, kind: str, style: Style = USUAL, over: Sequence[str] = ()) -> Figure:
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
        return _lay_out(view, panels, style)


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


def _lay_out(view: Plot, panels: Sequence[Sequence[Row]], style: Style) -> Figure:
    num_columns = ceil(len(panels) / ceil(len(panels) / (style.max_columns if view.is_beside else 1)))
    usual = (view.width if num_columns == 1 else 0.85 * view.width) * sized(1)
    width = style.width / num_columns if style.width else usual
    heights = _heights(view, panels, num_columns, width)
    size = width * num_columns, sum(heights)
    if style.ratio is not None:  # the smallest size of that ratio that holds the panels
        size = max(size[0], size[1] * style.ratio), max(size[0] / style.ratio, size[1])
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    pads = {"w_pad": sized(0.15), "h_pad": sized(0.1), "hspace": 0.04, "wspace": 0.03}
    figure.get_layout_engine().set(**pads)  # type: ignore[union-attr]
    axes = list(figure.subplots(len(heights), num_columns, squeeze=False, height_ratios=heights).flat)
    for panel_axes in axes[len(panels) :]:
        panel_axes.remove()
    among = [row for panel in panels for row in panel]
    finishers = []
    for panel_axes, panel in zip(axes, panels, strict=False):
        beside = sized(1.2) if view.is_beside else max(sized(1.2), names_width(panel))
        title(panel_axes, panel, inches=width - beside)
        finishers.append(view.draw(panel_axes, panel, among))
        tell_start(panel_axes)
    legend_below(figure, axes[: len(panels)])
    figure.canvas.draw()  # the layout is computed here
    if style.ratio is None:
        _make_room(figure, axes[: len(panels) : num_columns], heights)
    figure.set_layout_engine("none")  # and frozen
    for finish in finishers:
        finish()
    return figure


def _make_room(figure: Figure, axes: Sequence[Axes], heights: Sequence[float]) -> None:
    """Make the figure taller by the height that long titles and legends took from the panels."""
    heights_drawn = [panel_axes.get_window_extent().height / DPI for panel_axes in axes]
    missing = sum(max(0.0, high - sized(AROUND) - now) for high, now in zip(heights, heights_drawn, strict=True))
    if missing > sized(0.2):
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + missing)
        figure.canvas.draw()


def _heights(view: Plot, panels: Sequence[Sequence[Row]], num_columns: int, width: float) -> list[float]:
    """Return the height in inches of each line of panels: that of its tallest panel at this width."""
    lines = [panels[line * num_columns : (line + 1) * num_columns] for line in range(ceil(len(panels) / num_columns))]
    return [sized(max(view.height(panel, width / sized(1)) for panel in line)) for line in lines]
