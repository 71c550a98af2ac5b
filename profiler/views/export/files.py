"""Write files atomically: any file, and the derived tables and pictures of a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from profiler.analysis.rows import rows
from profiler.core import safe_files
from profiler.core.errors import UserError, load_module
from profiler.runs.store import Run, refuse_link
from profiler.views.export import data, markdown
from profiler.views.plots.panels import has_plane
from profiler.views.tables.columns import groups, main

MANY = 6  # groups of rows at most, for a frontier.png


def write_whole(path: Path, text: bytes, *, force: bool = False) -> Path:
    """Write a file atomically; an existing one is replaced only with `force`.

    Raises UserError (exit code 2) if the file exists, and (74) if it cannot be written or is not regular.
    """
    refuse_output(path, force=force)
    safe_files.write(path, text)
    return path


def refuse_output(path: Path | None, *, force: bool = False, kinds: Sequence[str] = (), hint: str = "") -> None:
    """Raise UserError if an output file cannot be written, before the work whose result it would hold.

    The exit code is 2 for a file that exists, without `force`, or whose suffix is none of `kinds`, with this hint; 74
    for a missing folder, and with `force` for a file that is not regular.
    """
    if path is None:
        return
    if not os.path.isdir(path.parent):
        message = f"cannot write '{path}': there is no folder '{path.parent}'"
        raise UserError(message, hint=f"mkdir -p {shlex.quote(str(path.parent))}", exit_code=74)
    if not safe_files.is_replaceable(path):
        message = f"'{path}' is there already and is no regular file, which alone is replaced"
        raise UserError(message, hint="name another file", exit_code=74 if force else 2)
    if os.path.lexists(path) and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")
    if kinds and path.suffix.lower() not in kinds:
        raise UserError(f"cannot write '{path.name}'", hint=hint)


def write_derived(run: Run) -> Iterator[Path]:
    """Write what is derived from a run, and yield each path: table.csv, table.md, then heat.png and frontier.png.

    heat.png needs two axes that vary, frontier.png rows with both peak and time, in at most MANY groups: each has a
    panel. Raises UserError if a file cannot be written (exit code 74), or if matplotlib is missing or broken (1).
    """
    folder, table = run.folder / "derived", rows(run.records)
    refuse_link(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        message = f"cannot write to '{folder}': {error.strerror}"
        raise UserError(message, hint="it should be a folder", exit_code=74) from error
    yield write_whole(folder / "table.csv", data.table(table).encode(), force=True)
    yield write_whole(folder / "table.md", markdown.markdown(main(table)).encode(), force=True)
    is_shown = any(row.outcome == "ok" and row.readings.peak_bytes is not None for row in table)
    has_frontier = any(row.on_frontier for row in table) and len(groups(table)) <= MANY
    for kind in [*["heat"] * (is_shown and has_plane(table)), *["frontier"] * has_frontier]:
        yield _plotting().plot(table, kind=kind, path=folder / f"{kind}.png", force=True)


def prepare_pictures() -> None:
    """Imports matplotlib ahead of time, if that works: the import is slow and can overlap with waiting."""
    with suppress(UserError):
        _plotting()


def _plotting() -> ModuleType:
    return load_module("profiler.views.plots.plot", needs="matplotlib")
