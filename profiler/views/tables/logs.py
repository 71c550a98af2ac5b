"""The last lines that a trial printed, from its log: knows nothing of why anybody asks."""

from __future__ import annotations

import os
from pathlib import Path

from profiler.core import safe_files
from profiler.views.sanitize import plain

NUM_LINES = 20
NUM_BYTES = 64 << 10  # of a log's end; a longer line has no beginning here
WIDEST = 500  # characters of a line


def last_lines(log: Path, *, encoding: str = "utf-8") -> list[str]:
    """At most NUM_LINES lines, harmless on any screen, each with its indent; none where there is no log to read."""
    try:
        with safe_files.opened(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - NUM_BYTES))
            lines = file.read(NUM_BYTES).decode(errors="replace").rstrip().splitlines()
    except OSError:
        return []
    return [_harmless(line[:WIDEST], encoding) for line in lines[-NUM_LINES:]]


def _harmless(line: str, encoding: str) -> str:
    indent = len(line) - len(line.lstrip(" "))
    return " " * indent + plain(line, encoding=encoding)
