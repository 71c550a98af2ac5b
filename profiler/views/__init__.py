"""The tables of views, readable without importing one: what a run can be exported to, and plotted as.

An export is one file with `render(run)`, which gives the whole file as bytes. A plot is one file: its `panels(rows,
over)` says which rows share a panel (see panels.py), `has(row)` which of them have its numbers, `height(rows, width)`
how tall a panel likes to be, and `draw(axes, rows, among)` draws it, one among the rows of all. Each is one line here.
"""

from typing import Any

from profiler.core import optional_deps

EXPORTS = {
    "csv": "profiler.views.export.csv:render",
    "parquet": "profiler.views.export.parquet:render",
    "json": "profiler.views.export.json:render",
    "md": "profiler.views.export.markdown:render",
    "latex": "profiler.views.export.latex:render",
}
PLOTS = {
    "frontier": "profiler.views.plots.frontier",
    "memory": "profiler.views.plots.memory",
    "time": "profiler.views.plots.time",
    "samples": "profiler.views.plots.samples",
    "heat": "profiler.views.plots.heat",
    "growth": "profiler.views.plots.growth",
    "throughput": "profiler.views.plots.throughput",
}


def load(target: str) -> Any:
    """The function that a line of EXPORTS names, imported only now. Raises UserError where its library is missing."""
    module, _, attribute = target.partition(":")
    return getattr(optional_deps.load(module), attribute)
