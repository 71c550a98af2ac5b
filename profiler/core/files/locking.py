"""One writer a file, by a lock that ends with its process: knows nothing of what is written."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from time import sleep

from profiler.core.files import regular

PATIENCE_SECONDS = 3.0  # for a holder that is about to end
ANSWER_SECONDS = 3.0  # for a file system that may not answer at all
PAUSE_SECONDS = 0.05
TAKEN = (errno.EAGAIN, errno.EACCES)


class TakenError(Exception):
    """Another process holds the lock, and went on holding it."""


def take(file: int) -> bool:
    """Lock an open file for this process; False where locks do not work, as on some network file systems.

    Raises TakenError where another process holds it for longer than one waits.
    """
    for _ in range(round(PATIENCE_SECONDS / PAUSE_SECONDS)):
        try:
            return _asked(file)
        except TakenError:
            sleep(PAUSE_SECONDS)
    return _asked(file)


def sign(path: Path) -> None:
    """Say in a file of its own who holds the lock, for those who wait; where it cannot be said, it is not."""
    try:
        with regular.anew(path) as file:
            file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    except OSError:
        return


def holder(path: Path) -> str:
    """Who signed, as far as it is known."""
    try:
        with regular.opened(path) as file:
            return file.read(200).decode(errors="replace").strip() or "it does not say who it is"
    except OSError:
        return "it does not say who it is"


def _asked(file: int) -> bool:
    """Ask once, in a thread of its own: a file server that is gone would keep the question for ever."""
    answers: SimpleQueue[OSError | None] = SimpleQueue()
    threading.Thread(target=_ask, args=(file, answers), daemon=True).start()
    try:
        error = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        return False
    if error is not None and error.errno in TAKEN:
        raise TakenError
    return error is None


def _ask(file: int, answers: SimpleQueue[OSError | None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        answers.put(error)
    else:
        answers.put(None)
