"""Files replaced whole by a rename, opened within one limit of size, and locked for a single writer."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from profiler.core.errors import UserError

NAME = re.compile(r"\.(?P<of>.+)\.(?P<host>[0-9a-f]{6})-(?P<process>\d{1,9})-[0-9a-f]{6}\.new", re.DOTALL)
MOST_BYTES = 64 << 20  # of a document or a line; the manifest of 100,000 trials takes 55 MiB
PATIENCE_SECONDS = 3.0  # to wait for a lock holder that is about to end
PAUSE_SECONDS = 0.05
BUFFER_BYTES = 1 << 18  # for reading lines; a record takes thousands of bytes
FULL = (errno.ENOSPC, errno.EDQUOT)


def beside(path: Path) -> Path:
    """Return a temporary name in the same folder, for a file or folder that is being made."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(3)}.new")


def write(path: Path, text: bytes) -> None:
    """Write a file atomically, replacing a regular file; a link to one is replaced, not followed.

    Raises UserError (exit code 74) if it cannot be written.
    """
    new = beside(path)
    try:
        if not is_replaceable(path):
            raise OSError(errno.EINVAL, "it is not a regular file")
        sweep(path.parent, path.name)
        with new.open("xb") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        remove(new)
        message = f"cannot write '{path}': {error.strerror}"
        is_full = error.errno in FULL
        hint = "free some space" if is_full else "name a file in a folder that is there and may be written to"
        raise UserError(message, hint=hint, exit_code=74) from error


def sweep(folder: Path, of: str | None = None) -> None:
    """Remove temporary files that killed processes of this machine left: of the file named `of`, or of any."""
    for path in folder.glob(".*.new"):
        name = NAME.fullmatch(path.name)
        if not name or of not in (None, name["of"]) or name["host"] != _host():
            continue
        try:
            os.kill(int(name["process"]), 0)
        except ProcessLookupError:
            remove(path)
        except OSError:  # another user's process
            continue


def remove(path: Path) -> None:
    """Remove a file or a whole folder as far as possible, without raising."""
    with suppress(OSError):  # it is gone, its name is too long, or nothing can be changed here
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _host() -> str:
    """Return a hash that tells machines sharing a folder apart without revealing their names."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]


def is_regular(path: Path) -> bool:
    """Whether a path is a file, and neither it nor its folder is a link. Raises OSError if access is denied."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def is_replaceable(path: Path) -> bool:
    """Whether a path is free, a regular file, or a link to one: never a device, a pipe or a folder."""
    return os.path.isfile(path) or not os.path.lexists(path)  # both return False for a name that is too long


def opened(path: Path, *, most_bytes: int | None = None) -> BinaryIO:
    """Open a file for reading. Raises OSError, also if it is a link, a pipe, or larger than `most_bytes`.

    A run folder may come from anyone: a link in it would show what lies elsewhere, a pipe would block.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if most_bytes is not None and path.stat().st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB")
    return path.open("rb", buffering=BUFFER_BYTES)


def anew(path: Path) -> BinaryIO:
    """Create a file, unbuffered, in place of any existing one; a link's target is not written to. Raises OSError."""
    path.unlink(missing_ok=True)
    return path.open("xb", buffering=0)


class TakenError(Exception):
    """Another process holds the lock."""


def lock(file: int) -> bool:
    """Lock an open file for this process; return False if locks do not work, as on some network file systems.

    Raises TakenError if another process still holds it after PATIENCE_SECONDS.
    """
    for _ in range(round(PATIENCE_SECONDS / PAUSE_SECONDS)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            time.sleep(PAUSE_SECONDS)
        except OSError:
            return False
        else:
            return True
    raise TakenError
