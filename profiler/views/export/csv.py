"""One line a case in base units, for scripts, and for spreadsheets that run no cell."""

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

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet would run a text that begins so; the wide ones too  # noqa: RUF001


def render(run: Run) -> bytes:
    """A run as a CSV file in UTF-8."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Returns a line for each row: bytes, medians in seconds, raw samples; a cell is empty if nothing was measured."""
    return csv_text(chain([COLUMNS], (_cells(row) for row in rows)))


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Lines of values as CSV."""
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


KINDS: dict[type, Callable[[Any], Any]] = {  # numbers are as they are
    str: lru_cache(maxsize=4096)(safe),  # most columns repeat their words
    tuple: lambda samples: ";".join(map(repr, samples)),
    bool: safe,
}
WRITTEN = [(place, KINDS[kind]) for place, kind in enumerate(COLUMNS.values()) if kind in KINDS]
