"""The commands that open a folder, and combinations of what they are given: a sample, or all."""

from __future__ import annotations

import os
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
SAMPLE = 18  # one of so many
IS_WHOLE = os.environ.get("GCPROF_ATTACK") == "whole"
LIMIT_SECONDS = 60


def combinations(*axes: Any) -> list[Any]:
    """A sample of all of them, which does not change from one day to the next; with `just attack` every one."""
    every: list[tuple[str, ...]] = [()]
    for axis in axes:
        every = [(*before, name) for before in every for name in axis]
    return [pytest.param(*names, id="-".join(names)) for names in every if IS_WHOLE or _is_in_sample(names)]


def _is_in_sample(names: tuple[str, ...]) -> bool:
    return zlib.crc32("|".join(names).encode()) % SAMPLE == 0


@contextmanager
def limited() -> Iterator[None]:
    """What waits for a pipe is ended."""
    before = signal.signal(signal.SIGALRM, lambda *of: pytest.fail("it waits for ever"))
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
