"""Whole files, written at once or not at all: knows nothing of what is in them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from profiler.errors import UserError


def write_whole(path: Path, text: bytes, *, force: bool = False) -> Path:
    """Write a new file; an existing one only by `force`. A reader never sees half of it.

    Raises UserError (exit code 2) where the file is there, and (74) where it cannot be written.
    """
    refuse_existing_file(path, force=force)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(3)}.new")
    try:
        with temporary.open("xb") as file:  # new, so that nothing that lies there is followed
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        message = f"cannot write '{path}': {error.strerror}"
        hint = "name a file in a folder that is there and may be written to"
        raise UserError(message, hint=hint, exit_code=74) from error
    return path


def refuse_existing_file(path: Path, *, force: bool = False) -> None:
    """Raises UserError where the file is there and must not be written over."""
    if os.path.lexists(path) and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")
