"""One line a case in base units, for spreadsheets and scripts: knows nothing of files or of commands."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

from profiler.analysis.line import COLUMNS, line
from profiler.analysis.rows import Row, rows
from profiler.store import Run
from profiler.views.plain import plain

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet would run a text that begins so; the wide ones too  # noqa: RUF001


def render(run: Run) -> bytes:
    """A run as a CSV file in UTF-8."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Bytes as whole numbers, seconds as medians with the raw samples beside them; empty where not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in msgspec.structs.astuple(line(row))] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return _safe(value)
    if kind is tuple:
        return ";".join(map(repr, value))
    return str(value).lower() if kind is bool else value


def _safe(text: str) -> str:
    """The text on one line, behind an apostrophe where it could be taken for a formula."""
    harmless = plain(text)
    return f"'{harmless}" if harmless.startswith(FORMULA) else harmless
