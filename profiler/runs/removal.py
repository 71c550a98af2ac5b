"""Removing run folders: only runs below the results, never one that is written to, and never through a link."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from profiler.core.errors import UserError
from profiler.runs import RESULTS
from profiler.runs.find import reference_folder
from profiler.runs.writer import held


def refuse(folder: Path) -> None:
    """Raises UserError for what is no run of the user's below the results, or is reached through a link."""
    root, whole = Path(os.path.abspath(RESULTS)), Path(os.path.abspath(folder))
    if root not in whole.parents:
        message = f"'{folder}' is not below '{RESULTS}': only runs there are removed"
        raise UserError(message, hint="rm -r removes others")
    if reference_folder().resolve() in whole.resolve().parents:
        raise UserError(f"'{folder}' is a reference run of gcprof", hint="`gcprof list` shows your own")
    links = [path for path in (root, whole, *whole.parents) if root in (path, *path.parents) and path.is_symlink()]
    if links:
        raise UserError(f"'{links[0]}' is a link, and what it leads to is not removed", hint="remove the link itself")


def remove(folder: Path) -> None:
    """Remove a run folder with all that is in it; of a link in it, the link.

    Raises UserError where it is refused, or where a process writes to it or to one of its parts.
    """
    refuse(folder)
    with ExitStack() as stack:
        for part in (folder, *(path.parent for path in folder.glob("shards/*/trials.jsonl"))):
            stack.enter_context(held(part))
        try:
            shutil.rmtree(folder)  # follows no link
        except OSError as error:
            message = f"cannot remove '{folder}': {error.strerror}"
            raise UserError(message, hint="what is left of it is no run any more", exit_code=74) from None


def size_bytes(folder: Path) -> int:
    """What its files take, links not followed."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files)
