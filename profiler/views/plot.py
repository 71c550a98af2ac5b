"""A picture of a run, one panel for each group of rows: knows nothing of what a panel shows."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from types import ModuleType

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.analysis.rows import Row
from profiler.errors import UserError
from profiler.views import PLOTS
from profiler.views.cells import groups
from profiler.views.files import write_whole
from profiler.views.paint import legend_below, title

SUFFIXES = ("png", "svg", "pdf")
DPI = 100  # of the layout; a png has twice as many
MAX_COLUMNS = 3


def plot(rows: Sequence[Row], *, kind: str, path: Path, force: bool = False) -> Path:
    """Draw one of PLOTS into a png, svg or pdf.

    Raises UserError for another suffix, for a file that is there, and where no row has the numbers.
    """
    refuse(path, force=force)  # before the work of drawing it
    return save(draw(rows, kind=kind), path=path, force=force)


def draw(rows: Sequence[Row], *, kind: str) -> Figure:
    """The figure, laid out. Raises UserError where no row has the numbers."""
    view = importlib.import_module(PLOTS[kind])
    panels = [group for group in groups(rows) if any(view.has(row) for row in group)]
    if not panels:
        raise UserError(f"nothing to plot: no row has {view.NEEDS}", hint="`gcprof show` says which numbers there are")
    return _lay_out(view, panels)


def refuse(path: Path, *, force: bool) -> None:
    """Raises UserError where a picture cannot be written there: by its suffix, or since it is there already."""
    if path.suffix.lower().removeprefix(".") not in SUFFIXES:
        raise UserError(f"cannot draw '{path.name}'", hint=f"name a file that ends in .{', .'.join(SUFFIXES)}")
    if path.exists() and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")


def save(figure: Figure, *, path: Path, force: bool) -> Path:
    """Write a figure as what its name ends in; the same bytes every time."""
    suffix = path.suffix.lower().removeprefix(".")
    text = BytesIO()
    metadata = {} if suffix == "png" else {"CreationDate" if suffix == "pdf" else "Date": None}
    with rc_context({"svg.hashsalt": "gcprof"}):  # else its ids are random
        figure.savefig(text, format=suffix, dpi=2 * DPI, metadata=metadata)
    return write_whole(path, text.getvalue(), force=force)


def _lay_out(view: ModuleType, panels: Sequence[Sequence[Row]]) -> Figure:
    num_columns = min(len(panels), MAX_COLUMNS if view.BESIDE else 1)
    num_lines = ceil(len(panels) / num_columns)
    width = view.WIDTH if num_columns == 1 else 0.85 * view.WIDTH
    heights = [
        max(view.height(group) for group in panels[line * num_columns : (line + 1) * num_columns])
        for line in range(num_lines)
    ]
    figure = Figure(figsize=(width * num_columns, sum(heights)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1, hspace=0.04, wspace=0.03)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(num_lines, num_columns, squeeze=False, height_ratios=heights)
    axes = list(grid.flat)
    for one in axes[len(panels) :]:
        one.remove()
    finishers = []
    for one, group in zip(axes, panels, strict=False):
        title(one, group, inches=width - 1.2)
        finishers.append(view.draw(one, group))
    legend_below(figure, axes[: len(panels)])
    figure.canvas.draw()  # the layout is made here, and kept
    figure.set_layout_engine("none")
    for finish in finishers:
        finish()
    return figure
