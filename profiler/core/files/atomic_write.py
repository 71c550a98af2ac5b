"""Files and folders in the making, under hidden names of their own: knows nothing of what is in them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path

from profiler.core.errors import UserError

NAME = re.compile(r"\.(?P<of>.+)\.(?P<process>[0-9a-f]{6}-\d{1,9})-[0-9a-f]{6}\.new", re.DOTALL)


def beside(path: Path) -> Path:
    """The name of a file or folder while it is made, beside the one that it will have."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(3)}.new")


def write(path: Path, text: bytes) -> None:
    """Write a file at once or not at all, over what is there; a link is replaced, not followed.

    Raises UserError (exit code 74) where it cannot be written.
    """
    new = beside(path)
    try:
        sweep(path.parent, path.name)
        with new.open("xb") as file:  # never through a link that somebody laid there
            file.write(text)
        new.replace(path)
    except OSError as error:
        remove(new)
        message = f"cannot write '{path}': {error.strerror}"
        hint = "name a file in a folder that is there and may be written to"
        raise UserError(message, hint=hint, exit_code=74) from error


def sweep(folder: Path, of: str | None = None) -> None:
    """Remove what killed processes of this machine left in the making: of the file of this name, or of any."""
    for path in folder.glob(".*.new"):
        found = NAME.fullmatch(path.name)
        if found and of in (None, found["of"]) and _is_gone(found["process"]):
            remove(path)


def remove(path: Path) -> None:
    """A file or a whole folder, as far as it can be."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:  # it is gone, its name is too long to be one, or nothing can be changed here
        return


def _is_gone(process: str) -> bool:
    host, _, pid = process.partition("-")
    if host != _host():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # somebody else's
        return False
    return False


def _host() -> str:
    """Tells machines apart that share a folder, without their names."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]
