"""stdin, stdout and stderr as a process finds them: closed, full, without a reader. Knows nothing of commands."""

from __future__ import annotations

import os
import sys


def open_standard() -> None:
    """Take the descriptors 0 to 2 where the caller closed them: else the next file or socket would be one of them.

    A closed stdout becomes one that nobody reads, so that writing to it fails; what goes to a closed stderr is lost.
    """
    for number in range(3):
        if not _is_open(number):
            os.set_inheritable(_unread() if number == 1 else os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def drop_unwritable() -> None:
    """What is still to be flushed at the end, to where nothing can be written, must not raise again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _unread() -> int:
    """The writing end of a pipe without a reader, at the lowest free descriptor."""
    lowest, other = os.pipe()  # reading, writing
    os.dup2(other, lowest)
    os.close(other)
    return lowest
