"""Tables and paragraphs for a screen of any width, and the main table of a run."""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from typing import Any, NamedTuple, TextIO

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.analysis.rows import Row
from profiler.core.units import MISSING
from profiler.views.sanitize import plain, plain_cells
from profiler.views.tables.columns import below, columns, groups, heading
from profiler.views.tables.grid import GAP, Column, GridLine, block, broken, grid

INDENT = "  "
Printed = Text  # what views for the terminal return, and `write` prints


class Paper(NamedTuple):
    """What text is laid out for: a width in columns (None: unlimited), and the characters of an encoding."""

    width: int | None = None
    encoding: str = "utf-8"


WIDE = Paper()


class Harmless(str):
    """Text that is known to have no control characters: `translate`, by which rich removes them, does nothing."""

    __slots__ = ()

    def translate(self, table: object) -> str:
        return self


def table(rows: Sequence[Row], *, paper: Paper = WIDE) -> Text:
    """Return one table for each group of rows that may be compared, with reasons and notes below it.

    Numbers are never cut: a table that does not fit is split into memory and time, then into one block per row. A width
    of None (a pipe) is unlimited.
    """
    return Text("\n\n").join(
        [titled(heading(group), _laid_out(group, paper), paper, below=below(group)) for group in groups(rows)]
    )


def bodies(rows: Sequence[Row], *, paper: Paper = WIDE) -> Text:
    """Return the same tables without headings and notes, for a run in progress."""
    return Text("\n\n").join([_laid_out(group, paper) for group in groups(rows)])


def paragraph(text: str, paper: Paper, *, style: str = "", indent: str = INDENT) -> Text:
    """Breaks prose from any source to the width, with a hanging indent."""
    lines = broken(plain(text, encoding=paper.encoding), max(20, (paper.width or 10**9) - len(indent)))
    return Text(("\n" + indent).join(lines), style=style)


def titled(title: str, body: Text, paper: Paper, *, below: Sequence[str] = ()) -> Text:
    """Return a body under a title in bold, with paragraphs below it."""
    head = paragraph(title, paper, style="bold")
    lines = [paragraph(line, paper) for line in below]
    return Text("\n").join([head, Text(), body, *([Text()] if lines else []), *lines])


def fitted(columns: Sequence[Column], paper: Paper, *, cut: int | None = None) -> Text:
    """Lay out any table: in lines if it fits, else as a block for each row.

    With `cut`, a table that is too wide is first cut in two before that column; each half has the first column.
    """
    cleaned = [clean(column, paper) for column in columns]
    halves = [[cleaned[:cut], [cleaned[0], *cleaned[cut:]]]] if cut else []
    for parts in ([cleaned], *halves):
        grids = [lines for part in parts if (lines := grid(part, width=paper.width)) is not None]
        if len(grids) == len(parts):
            return Text("\n\n").join([styled(lines) for lines in grids])
    rows = range(len(cleaned[0].cells))
    return Text("\n\n").join([styled(block(cleaned, row=row, width=paper.width)) for row in rows])


def ruled(columns: Sequence[Column], *, title: str | None = None, bold: Container[int] = ()) -> Table:
    """Return a table for rich to lay out, with a rule below its head; the rows in `bold` are bold."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.label, justify="right" if column.is_number else "left")
    for row, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*cells, style="bold" if row in bold else None)
    return table


def strips(columns: Sequence[Column], paper: Paper) -> Text:
    """Lay out a table of many similar columns in strips below each other, each with the first column."""
    first, *rest = [clean(column, paper) for column in columns]
    parts, width = [], paper.width
    while rest:
        count = 1
        while count < len(rest) and (width is None or grid([first, *rest[: count + 1]], width=width) is not None):
            count += 1
        parts.append(fitted([first, *rest[:count]], paper))
        rest = rest[count:]
    return Text("\n\n").join(parts)


def styled(lines: Sequence[GridLine], *, dim: Set[int] = frozenset()) -> Text:
    """Return laid-out lines of cleaned columns as text, with the head in bold and the rows in `dim` dim."""
    text = Text(Harmless("\n".join([line.text for line in lines])))  # one text: rich takes a second to join 30,000
    marked = [at for at, line in enumerate(lines) if line.row == -1 or line.spans or line.row in dim]
    end = -1
    for line in lines[: marked[-1] + 1] if marked else ():
        start, end = end + 1, end + 1 + len(line.text)
        if line.row == -1 or line.row in dim:
            text.stylize("bold" if line.row == -1 else "dim", start, end)
        for first, last, colour in line.spans:
            text.stylize(colour, start + first, start + last)
    return text


def clean(column: Column, paper: Paper) -> Column:
    """Return a column whose texts are safe to print and have only characters of the paper's encoding."""
    return msgspec.structs.replace(
        column,
        head=tuple(plain(text, encoding=paper.encoding) for text in column.head),
        cells=plain_cells(column.cells, encoding=paper.encoding),
    )


def write(text: Text, *, file: TextIO, color: str = "auto") -> None:
    """Print the text; `color` is auto (colors only on a terminal and without NO_COLOR), always or never."""
    asked: dict[str, Any] = {}
    if color == "always":
        asked = {"force_terminal": True, "no_color": False}
    elif color == "never":
        asked = {"color_system": None}
    console = Console(file=file, markup=False, highlight=False, emoji=False, legacy_windows=False, **asked)
    if console.color_system is None or (console.no_color and color == "auto"):
        file.write(f"{text.plain}\n")
        return
    with console.capture() as captured:  # rich itself would end the process on a broken pipe
        console.print(text, soft_wrap=True)
    file.write(captured.get())


def _laid_out(rows: Sequence[Row], paper: Paper) -> Text:
    """Return the first that fits: one table, two below each other, or a block per row."""
    shown = columns(rows)
    parts = ((shown.name,), shown.memory, shown.time, shown.verdict)
    name, memory, time, verdict = (tuple(clean(column, paper) for column in part) for part in parts)
    dim = {at for at, row in enumerate(rows) if row.outcome == "invalid"}
    halves = (name + memory, name + time + verdict)
    for cut in ((name + memory + time + verdict,), halves):
        grids = [grid(part, width=paper.width) for part in cut]
        if all(grids):
            return Text("\n\n").join([styled(lines or [], dim=dim) for lines in grids])
    rest = memory + time + verdict
    blocks = [_block(name[0].cells[row], rest, row, dim) for row in range(len(rows))]
    return Text("\n\n").join(blocks)


def _block(name: str, columns: Sequence[Column], row: int, dim: Set[int]) -> Text:
    lines = block(columns, row=row)
    measured = [line for line in lines if not line.text.endswith(f"{GAP}{MISSING}")]
    shown = measured if len(measured) < len(lines) / 2 else lines
    return Text("\n").join([Text(name, style="bold"), styled(shown, dim=dim)])
