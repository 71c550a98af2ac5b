"""Rows to text, pictures, pages and files.

The two tables name what a run can be exported to and plotted as; reading them imports no view. An export is a file with
`render(run)`, which returns the whole file as bytes. A plot is a file with `panels(rows, over)`, which groups the rows
that share a panel (see panels.py), `has(row)`, whether a row has the numbers, `height(rows, width)`, the inches a panel
asks for, and `draw(axes, rows, among)`, which draws one panel; `among` are the rows of all panels. A new export or plot
is one file and one line here.
"""

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
