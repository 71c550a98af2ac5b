"""The files that come with every run, always re-creatable from it: knows nothing of commands."""

from __future__ import annotations

from pathlib import Path

from profiler.analysis.rows import rows
from profiler.errors import UserError
from profiler.store import Run
from profiler.views import csv, markdown, plot
from profiler.views.files import write_whole


def write(run: Run) -> list[Path]:
    """Write table.csv, table.md and, where a row has both peak and time, frontier.png. Returns what was written."""
    folder = run.folder / "derived"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to '{folder}': {error.strerror}", hint="it should be a folder", exit_code=74
        ) from error
    found = rows(run.records)
    written = [
        write_whole(folder / "table.csv", csv.table(found).encode(), force=True),
        write_whole(folder / "table.md", markdown.table(found).encode(), force=True),
    ]
    if any(row.on_frontier for row in found):
        written.append(plot.plot(found, kind="frontier", path=folder / "frontier.png", force=True))
    return written
