"""Signals that ask a command to end: knows nothing of what it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from profiler.workflows import Interrupted


@contextmanager
def heeded() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise Interrupted, once: a second one ends the process at once."""

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
    """From here on a signal ends this process, with a line of these words; the engine's processes end with it."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.write(2, f"\n{words}\n".encode())
        signal.raise_signal(number)

    for number in _not_ignored():
        signal.signal(number, end if words else signal.SIG_DFL)


def _not_ignored() -> list[int]:
    """`nohup` ignores SIGHUP, and means it."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]
