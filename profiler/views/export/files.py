"""Files written whole or not at all: any file, and the ones that come with every run."""

from __future__ import annotations

import os
from pathlib import Path

from profiler.analysis.rows import rows
from profiler.core import optional_deps
from profiler.core.errors import UserError
from profiler.core.files import atomic_write
from profiler.runs.store import Run, refuse_link
from profiler.views.export import csv, markdown
from profiler.views.plots.panels import has_plane
from profiler.views.tables.columns import groups

MANY = 6  # groups


def write_whole(path: Path, text: bytes, *, force: bool = False) -> Path:
    """Write a new file; an existing one only by `force`. A reader never sees half of it.

    Raises UserError (exit code 2) where the file is there, and (74) where it cannot be written.
    """
    refuse_existing_file(path, force=force)
    atomic_write.write(path, text)
    return path


def refuse_existing_file(path: Path, *, force: bool = False) -> None:
    """Raises UserError where the file is there and must not be written over."""
    if os.path.lexists(path) and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")


def write_tables(run: Run) -> list[Path]:
    """Write table.csv and table.md; what was written. Raises UserError (exit code 74) where that fails."""
    folder, found = _folder(run), rows(run.records)
    return [
        write_whole(folder / "table.csv", csv.table(found).encode(), force=True),
        write_whole(folder / "table.md", markdown.table(found).encode(), force=True),
    ]


def write_pictures(run: Run) -> list[Path]:
    """Write frontier.png where a row has both peak and time, and heat.png where two axes vary; what was written.

    Of many groups there is no frontier, which would be a panel for each. Raises UserError where a file cannot be
    written (exit code 74), or where matplotlib is missing or broken (1).
    """
    folder, found = _folder(run), rows(run.records)
    is_shown = any(row.outcome == "ok" and row.readings.peak_bytes is not None for row in found)
    has_frontier = any(row.on_frontier for row in found) and len(groups(found)) <= MANY
    kinds = ["heat"] * (is_shown and has_plane(found)) + ["frontier"] * has_frontier
    if not kinds:
        return []
    plot = optional_deps.load("profiler.views.plots.plot", needs="matplotlib").plot
    return [plot(found, kind=kind, path=folder / f"{kind}.png", force=True) for kind in kinds]


def _folder(run: Run) -> Path:
    folder = run.folder / "derived"
    refuse_link(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        message = f"cannot write to '{folder}': {error.strerror}"
        raise UserError(message, hint="it should be a folder", exit_code=74) from error
    return folder
