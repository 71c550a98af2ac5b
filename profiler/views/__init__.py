"""Rows to text, pictures, pages and files.

The two tables list the export formats and the kinds of plot; reading them imports no view. An export is a function that
returns the whole file as bytes. A plot is a `Plot` (plots/__init__.py). A new export or plot takes one function, one
line here, and its name in the help (cli/show.py).
"""

from pathlib import Path

NOTES = Path(__file__).parent / "notes.md"
EXPORTS = {
    "csv": "profiler.views.export:render_csv",
    "parquet": "profiler.views.export:render_parquet",
    "json": "profiler.views.export:render_json",
    "md": "profiler.views.export:render_markdown",
    "latex": "profiler.views.export:render_latex",
}
PLOTS = {
    "frontier": "profiler.views.plots.frontier:PLOT",
    "memory": "profiler.views.plots.steps:MEMORY",
    "time": "profiler.views.plots.steps:TIME",
    "samples": "profiler.views.plots.steps:SAMPLES",
    "heat": "profiler.views.plots.settings:HEAT",
    "growth": "profiler.views.plots.settings:GROWTH",
    "throughput": "profiler.views.plots.settings:THROUGHPUT",
}
