"""The commands that open a folder, and combinations of what they are given, of which some are quick tests."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

READING = {
    "show": ("show", "base"),
    "document": ("show", "base", "--json"),
    "report": ("report", "base", "-o", "report.html"),
    "compare": ("compare", "base", "base2"),
    "export": ("export", "base", "--to", "json"),
    "validate": ("validate", "base"),
    "merge": ("merge", "base", "base2", "-o", "merged"),
    "list": ("list", "--folder", "."),
}
RUNNING = {
    "explain": ("explain", "base"),
    "resume": ("run", "--resume", "base"),
    "resume, half named": ("run", "--resume", "base", "--model", "mlp"),
    "new run": ("run", "--resume", "base", "--new-run", "-o", "new"),
}
SAMPLE = 16  # one of so many combinations is among the quick tests
LIMIT_SECONDS = 60


def combinations(*axes: Any) -> list[Any]:
    """All of them, most of them slow; which are quick does not change from one day to the next."""
    every: list[tuple[str, ...]] = [()]
    for axis in axes:
        every = [(*before, name) for before in every for name in axis]
    return [
        pytest.param(*names, marks=() if _is_quick(names) else pytest.mark.slow, id="-".join(names)) for names in every
    ]


def _is_quick(names: tuple[str, ...]) -> bool:
    return zlib.crc32("|".join(names).encode()) % SAMPLE == 0


@contextmanager
def limited() -> Iterator[None]:
    """What waits for a pipe is ended."""
    before = signal.signal(signal.SIGALRM, lambda *of: pytest.fail("it waits for ever"))
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
