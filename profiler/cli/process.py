"""The process of a command: its standard streams, termination signals, and the file of an internal error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from profiler.workflows import Interrupted

FOLDER: str | None = None  # for the file of an internal error; None: where temporary files are


def open_standard() -> None:
    """Open streams that lead nowhere, if the caller closed stdout or stderr."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def drop_unwritable() -> None:
    """Redirect streams that cannot be flushed to /dev/null, so that flushing them at exit does not raise again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def heeded() -> Iterator[None]:
    """Context manager in which Ctrl-C, SIGTERM and SIGHUP raise Interrupted once; a second one ends the process."""

    def handle(number: int, frame: object) -> None:
        end_at_once()
        raise Interrupted(number)

    before = {number: signal.signal(number, handle) for number in _not_ignored()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once(words: str = "") -> None:
    """Make a signal end this process from now on, with a line of these words; the engine's processes end with it."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.write(2, f"\n{words}\n".encode())
        signal.raise_signal(number)

    for number in _not_ignored():
        signal.signal(number, end if words else signal.SIG_DFL)


def _not_ignored() -> list[int]:
    """Return the termination signals that are not ignored: `nohup` ignores SIGHUP on purpose."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]


def keep_error(error: BaseException) -> str | None:
    """Write the traceback to a new file that only this user can read; return its path, or None if that fails."""
    import tempfile
    import traceback

    from profiler.core.secret_filter import hide

    try:
        descriptor, path = tempfile.mkstemp(prefix="gcprof-error-", suffix=".log", dir=FOLDER)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(hide("".join(traceback.format_exception(error))))
    except OSError:
        return None
    return path
