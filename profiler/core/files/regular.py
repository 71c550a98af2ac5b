"""Regular files only: no link is followed, and no pipe or device is waited for. Knows nothing of what is in them."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path
from typing import BinaryIO

READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer would keep one for ever
MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def is_regular(path: Path) -> bool:
    """Whether it is a file, in a folder that is no link either. Raises OSError where nobody may look."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def opened(path: Path) -> BinaryIO:
    """Open a file that anyone may have laid there. Raises OSError, also where it is a link, a pipe or a device."""
    descriptor = os.open(path, READING)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def anew(path: Path) -> FileIO:
    """Make the file anew, unbuffered: what lies there, or where a link leads, is not written to. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, MAKING, 0o644), "wb", buffering=0)
