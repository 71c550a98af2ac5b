"""The tables of views, readable without importing one: what a run can be exported to, and plotted as.

An export is one file with `render(run)`, which gives the whole file as bytes. A plot is one file: its `panels(rows,
over)` says which rows share a panel (see panels.py), `has(row)` which of them have its numbers, `height(rows, width)`
how tall a panel likes to be, and `draw(axes, rows, among)` draws it, one among the rows of all. Each is one line here.
"""

from typing import Any

from profiler import extras

EXPORTS = {
    "csv": "profiler.views.csv:render",
    "parquet": "profiler.views.parquet:render",
    "json": "profiler.views.json:render",
    "md": "profiler.views.markdown:render",
    "latex": "profiler.views.latex:render",
}
PLOTS = {
    "frontier": "profiler.views.plot_frontier",
    "memory": "profiler.views.plot_memory",
    "time": "profiler.views.plot_time",
    "samples": "profiler.views.plot_samples",
    "heat": "profiler.views.plot_heat",
    "growth": "profiler.views.plot_growth",
    "throughput": "profiler.views.plot_throughput",
}


def load(target: str) -> Any:
    """The function that a line of EXPORTS names, imported only now. Raises UserError where its library is missing."""
    module, _, attribute = target.partition(":")
    return getattr(extras.load(module), attribute)
