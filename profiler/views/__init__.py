"""The tables of views, readable without importing one: what a run can be exported to, and plotted as.

An export is one file with `render(run)`, which gives the whole file as bytes; a plot is one file with
`draw(axes, rows)`, `has(row)` and `height(rows)`. Each is one line here.
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
}


def load(target: str) -> Any:
    """The function that a line of EXPORTS names, imported only now. Raises UserError where its library is missing."""
    module, _, attribute = target.partition(":")
    return getattr(extras.load(module), attribute)
