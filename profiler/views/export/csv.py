"""CSV export: one line per case in base units; no cell can run as a formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet runs text that starts so as a formula; full-width too  # noqa: RUF001


def render(run: Run) -> bytes:
    """Return a run as a CSV file in UTF-8."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Return a CSV line per row: bytes, median seconds, raw samples; a cell is empty if nothing was measured."""
    return csv_text(chain([COLUMNS], (_cells(row) for row in rows)))


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of values as CSV text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _cells(row: Row) -> list[Any]:
    cells = list(flat_row(row).values())
    for place, written in WRITTEN:
        if cells[place] is not None:
            cells[place] = written(cells[place])
    return cells


def safe(value: Any) -> Any:
    """Return a value as it is written: booleans in lower case, text on one line and never a formula.

    Text that a spreadsheet would run, or that begins with an apostrophe, gets an apostrophe in front, so that removing
    a leading apostrophe always restores the text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith((*FORMULA, "'")) else text


KINDS: dict[type, Callable[[Any], Any]] = {  # numbers are written unchanged
    str: lru_cache(maxsize=4096)(safe),  # most columns repeat a few values
    tuple: lambda samples: ";".join(map(repr, samples)),
    bool: safe,
}
WRITTEN = [(place, KINDS[kind]) for place, kind in enumerate(COLUMNS.values()) if kind in KINDS]
