"""One line a case in base units, for scripts, and for spreadsheets that run no cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from profiler.analysis.flat_row import COLUMNS, Samples, flat_row
from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet would run a text that begins so; the wide ones too  # noqa: RUF001


def render(run: Run) -> bytes:
    """A run as a CSV file in UTF-8."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Returns a line for each row: bytes, medians in seconds, raw samples; a cell is empty if nothing was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _cells(row: Row) -> list[Any]:
    cells = list(flat_row(row).values())
    for place, written in WRITTEN:
        if cells[place] is not None:
            cells[place] = written(cells[place])
    return cells


def _joined(samples: Samples) -> str:
    return ";".join(map(repr, samples))


def _lower(flag: bool) -> str:
    return str(flag).lower()


@lru_cache(maxsize=4096)  # most columns repeat their words
def _safe(text: str) -> str:
    return str(safe(text))


KINDS: dict[type, Callable[[Any], str]] = {str: _safe, tuple: _joined, bool: _lower}  # numbers are as they are
WRITTEN = [(place, KINDS[kind]) for place, kind in enumerate(COLUMNS.values()) if kind in KINDS]


def safe(value: Any) -> Any:
    """Returns a value as it is written: booleans in small letters, text on one line and never a formula.

    Text that a spreadsheet would run, or that begins with an apostrophe, gets an apostrophe in front. So a reader who
    removes a leading apostrophe always has the original text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith((*FORMULA, "'")) else text
