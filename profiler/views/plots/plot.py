"""Plot a run of panels, in a style, and save it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.rows import Row
from profiler.core.errors import UserError, load_function
from profiler.views import PLOTS
from profiler.views.plots import theme
from profiler.views.plots.panels import Plot
from profiler.views.plots.theme import USUAL, Style, sized


def plot(
    rows: Sequence[Row], *, kind: str, path: Path, force: bool = False, style: Style = USUAL, over: Sequence[str] = ()
) -> Path:
    """Draw one of PLOTS into a png, svg or pdf; `over` names the axes of plots that have a choice.

    Raises UserError for another suffix, for a file that exists, without `force`, and if no row has the numbers.
    """
    theme.refuse(path, force=force)  # before the work of drawing it
    return theme.save(draw(rows, kind=kind, style=style, over=over), path=path, force=force, style=style)


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
    if len(panels) > theme.MOST:
        hint = f"one holds {theme.MOST}; --kind heat, growth and throughput show many cases in one panel"
        raise UserError(f"{len(panels)} panels are too many for one picture", hint=hint)
    with theme.at_work(style):
        lines, columns = theme.num_lines(len(panels), style.max_columns if view.is_beside else 1)
        usual = (view.width if columns == 1 else 0.85 * view.width) * sized(1)
        width = style.width / columns if style.width else usual
        high = [sized(view.height(panel, width / sized(1))) for panel in panels]
        heights = [max(high[line * columns : (line + 1) * columns]) for line in range(lines)]
        among = [row for panel in panels for row in panel]

        def draw_panel(axes: Axes, panel: Sequence[Row]) -> Callable[[], object] | None:
            if has_titles:
                beside = sized(1.2) if view.is_beside else max(sized(1.2), theme.names_width(panel))
                theme.title(axes, panel, inches=width - beside)
            finish = view.draw(axes, panel, among)
            theme.tell_start(axes)
            return finish

        drawn = [partial(draw_panel, panel=panel) for panel in panels]
        return theme.picture(drawn, heights, width=width * columns, columns=columns, ratio=style.ratio)
