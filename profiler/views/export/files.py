"""Whole files, written at once or not at all: knows nothing of what is in them."""

from __future__ import annotations

import os
from pathlib import Path

from profiler.core import safe_files
from profiler.core.errors import UserError


def write_whole(path: Path, text: bytes, *, force: bool = False) -> Path:
    """Write a new file; an existing one only by `force`. A reader never sees half of it.

    Raises UserError (exit code 2) where the file is there, and (74) where it cannot be written.
    """
    refuse_existing_file(path, force=force)
    safe_files.write(path, text)
    return path


def refuse_existing_file(path: Path, *, force: bool = False) -> None:
    """Raises UserError where the file is there and must not be written over."""
    if os.path.lexists(path) and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")
