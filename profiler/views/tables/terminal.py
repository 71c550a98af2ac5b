"""Tables as text for a screen of any width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from profiler.views.sanitize import plain
from profiler.views.tables.grid import Table, body, broken

INDENT = "  "


class Paper(NamedTuple):
    """What text is laid out for: a width in columns (None: unlimited), and the characters of an encoding."""

    width: int | None = None
    encoding: str = "utf-8"


WIDE = Paper()


def text(tables: Iterable[Table], paper: Paper = WIDE) -> Text:
    """Return tables below each other.

    Numbers are never cut: a table that does not fit is split where it says so, then into one block per row. A width of
    None (a pipe) is unlimited.
    """
    return Text("\n\n").join([_titled(table, paper) for table in tables])


def _titled(table: Table, paper: Paper) -> Text:
    parts = [_paragraph(table.title, paper, style="bold")] if table.title else []
    parts += [_paragraph(line, paper) for line in table.above]
    if table.columns:
        parts += [*([Text()] if parts else []), body(table, width=paper.width, encoding=paper.encoding)]
    parts += [Text()] if table.below and parts else []
    return Text("\n").join([*parts, *(_paragraph(line, paper) for line in table.below)])


def _paragraph(text: str, paper: Paper, *, style: str = "") -> Text:
    """Breaks prose from any source to the width, with a hanging indent."""
    lines = broken(plain(text, encoding=paper.encoding), max(20, (paper.width or 10**9) - len(INDENT)))
    return Text(("\n" + INDENT).join(lines), style=style)


def show(tables: Iterable[Table], *, file: TextIO, width: int | None = None, color: str = "auto") -> None:
    """Print tables; `color` is auto (colors only on a terminal and without NO_COLOR), always or never."""
    laid_out = text(tables, Paper(width, getattr(file, "encoding", None) or "utf-8"))
    asked: dict[str, Any] = {}
    if color == "always":
        asked = {"force_terminal": True, "no_color": False}
    elif color == "never":
        asked = {"color_system": None}
    console = Console(file=file, markup=False, highlight=False, emoji=False, legacy_windows=False, **asked)
    if console.color_system is None or (console.no_color and color == "auto"):
        file.write(f"{laid_out.plain}\n")
        return
    with console.capture() as captured:  # rich itself would end the process on a broken pipe
        console.print(laid_out, soft_wrap=True)
    file.write(captured.get())
