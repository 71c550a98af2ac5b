"""The files that come with every run, always re-creatable from it: knows nothing of commands."""

from __future__ import annotations

from pathlib import Path

from profiler.analysis.rows import rows
from profiler.errors import UserError
from profiler.store import Run, refuse_link
from profiler.views import csv, markdown, plot
from profiler.views.cells import groups
from profiler.views.files import write_whole
from profiler.views.panels import has_plane

MANY = 6  # groups


def write(run: Run) -> list[Path]:
    """Write table.csv, table.md, frontier.png where a row has both peak and time, and heat.png where two axes vary.

    Of many groups there is no frontier, which would be a panel for each. Returns what was written.
    """
    folder = run.folder / "derived"
    refuse_link(folder)
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
    is_shown = any(row.outcome == "ok" and row.readings.peak_bytes is not None for row in found)
    if is_shown and has_plane(found):
        written.append(plot.plot(found, kind="heat", path=folder / "heat.png", force=True))
    if any(row.on_frontier for row in found) and len(groups(found)) <= MANY:
        written.append(plot.plot(found, kind="frontier", path=folder / "frontier.png", force=True))
    return written
