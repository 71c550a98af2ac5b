"""The table as Markdown: knows nothing of files or of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain
from profiler.views.tables.columns import Column, columns, groups, heading, reasons, remarks

SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#$~&"})


def render(run: Run) -> bytes:
    """A run as a Markdown file."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """One table for each group of rows, with the reasons and the notes as a list below it."""
    return "\n".join(_group(group) for group in groups(rows))


def _group(rows: Sequence[Row]) -> str:
    shown = columns(rows).all
    lines = [f"### {_escaped(heading(rows))}", "", _line([column.label for column in shown])]
    lines.append("|" + "|".join(" ---: " if column.is_number else " --- " for column in shown) + "|")
    lines += [_line(_cells(shown, row)) for row in range(len(rows))]
    below = [*reasons(rows), *(f"note: {remark}" for remark in remarks(rows))]
    return "\n".join([*lines, *([""] if below else []), *(f"- {_escaped(line)}" for line in below), ""])


def _cells(shown: Sequence[Column], row: int) -> list[str]:
    return [column.cells[row] for column in shown]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return plain(text).translate(SPECIAL)
