"""Atomic file writes, opening of regular files only, and locks for a single writer per file."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from queue import Empty, SimpleQueue
from time import sleep
from typing import BinaryIO

from profiler.core.errors import UserError

NAME = re.compile(r"\.(?P<of>.+)\.(?P<process>[0-9a-f]{6}-\d{1,9})-[0-9a-f]{6}\.new", re.DOTALL)
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer would block forever
APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PATIENCE_SECONDS = 3.0  # to wait for a lock holder that is about to end
ANSWER_SECONDS = 3.0  # to wait for a file system that may never answer
PAUSE_SECONDS = 0.05
BUFFER_BYTES = 1 << 18  # for reading lines; a record takes thousands of bytes
FULL = (errno.ENOSPC, errno.EDQUOT)
TAKEN = (errno.EAGAIN, errno.EACCES)


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
        with new.open("xb") as file:  # never through a link that somebody put there
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
        if name and of in (None, name["of"]) and _is_gone(name["process"]):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a whole folder as far as possible, without raising."""
    with suppress(OSError):  # it is gone, its name is too long, or nothing can be changed here
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_gone(process: str) -> bool:
    host, _, pid = process.partition("-")
    if host != _host():
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as error:  # the process is gone, or another user's
        return isinstance(error, ProcessLookupError)
    return False


def _host() -> str:
    """Return a hash that tells machines sharing a folder apart without revealing their names."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]


def is_regular(path: Path) -> bool:
    """Whether a path is a file, and neither it nor its folder is a link. Raises OSError if access is denied."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def opened(path: Path, *, most_bytes: int | None = None) -> BinaryIO:
    """Open a file for reading that anyone may have put there, in a run folder or at a path that the user names.

    Raises OSError, also if it is a link, a pipe or a device, or larger than `most_bytes`.
    """
    try:
        descriptor = os.open(path, READING)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, not a regular file") from None
        raise
    try:
        size = regular(descriptor).st_size
        if most_bytes is not None and size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB")
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb", buffering=BUFFER_BYTES)


def opened_to_append(path: Path) -> int:
    """Open or create a file for appending. Raises OSError if it is a link, or has further hard links.

    What is written through either would change a file elsewhere, which may be one of the user's.
    """
    descriptor = os.open(path, APPENDING, 0o644)
    try:
        if regular(descriptor).st_nlink > 1:
            raise OSError(errno.EMLINK, "it has another name elsewhere")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def regular(descriptor: int) -> os.stat_result:
    """Return the stat result of an open file. Raises OSError if it is not a regular file."""
    known = os.fstat(descriptor)
    if not stat.S_ISREG(known.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return known


def is_replaceable(path: Path) -> bool:
    """Whether a path is free, a regular file, or a link to one: never a device, a pipe or a folder."""
    return os.path.isfile(path) or not os.path.lexists(path)  # both return False for a name that is too long


def anew(path: Path) -> FileIO:
    """Create a file, unbuffered, in place of any existing one; a link's target is not written to. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, MAKING, 0o644), "wb", buffering=0)


class TakenError(Exception):
    """Another process holds the lock."""


def lock(file: int) -> bool:
    """Lock an open file for this process; return False if locks do not work, as on some network file systems.

    Raises TakenError if another process still holds it after PATIENCE_SECONDS.
    """
    for _ in range(round(PATIENCE_SECONDS / PAUSE_SECONDS)):
        try:
            return _is_locked(file)
        except TakenError:
            sleep(PAUSE_SECONDS)
    return _is_locked(file)


def sign_lock(path: Path) -> None:
    """Write who holds the lock to a separate file, for those who wait; errors are ignored."""
    with suppress(OSError), anew(path) as file:
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())


def lock_holder(path: Path) -> str:
    """Return who signed the lock, or a text that says that it is not known."""
    holder = ""
    with suppress(OSError), opened(path) as file:
        holder = file.read(200).decode(errors="replace").strip()
    return holder or "it does not say who it is"


def _is_locked(file: int) -> bool:
    """Try to lock the file, and return whether it worked. Raises TakenError if another process holds it.

    A separate thread asks, since a file server that is gone would never answer.
    """
    answers: SimpleQueue[OSError | None] = SimpleQueue()
    threading.Thread(target=_try_lock, args=(file, answers), daemon=True).start()
    try:
        error = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        return False
    if error is not None and error.errno in TAKEN:
        raise TakenError
    return error is None


def _try_lock(file: int, answers: SimpleQueue[OSError | None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        answers.put(error)
    else:
        answers.put(None)
