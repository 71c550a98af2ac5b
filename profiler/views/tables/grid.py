"""The one table of all views: columns of text under a title, and their layout as lines that fit a screen."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from itertools import chain, pairwise, zip_longest
from typing import Any, NamedTuple, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from profiler.core.units import MISSING
from profiler.views.sanitize import plain, plain_cells

GAP = "  "
NUMBER = r"(?<=\d),(?=\d{3}(?!\d))|:(?=\d)|(?<=\bref):"  # not broken behind, as in 1,021, cuda:0 and ref:NAME
UNIT = r"(?<=\d) (?=(?:[KMGT]?i?B|%|[um]?s|FLOPs)(?![\w/]))"  # between a number and its unit; not broken at
MOST_STYLED = 5_000  # rows of a table whose cells are styled: for more, styling takes longer than the rest of the table
WORD = re.compile(rf"(?:[^ ]|{UNIT})+ ?| ")
PIECE = re.compile(rf"(?:[^,: ]|{NUMBER}|{UNIT})*[,: ]?")  # text may break behind a comma, a colon or a space
INDENT = "  "


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column: its head in up to two lines, and a cell for every row."""

    head: tuple[str, str]
    cells: tuple[str, ...]
    is_number: bool = False  # right-aligned, and never shortened or broken
    styles: tuple[str, ...] = ()  # of the cells, on a terminal with colors; empty: all plain

    @property
    def label(self) -> str:
        return " ".join(part for part in self.head if part)


def words(first: str, second: str, cells: Iterable[object], styles: Iterable[str] = ()) -> Column:
    """Return a column of text under a head of two lines."""
    return Column(head=(first, second), cells=_each_once(map(str, cells)), styles=tuple(styles))


def numbers(first: str, second: str, cells: Iterable[str], styles: Iterable[str] = ()) -> Column:
    """Return a column of numbers under a head of two lines."""
    return Column(head=(first, second), cells=_each_once(cells), is_number=True, styles=tuple(styles))


def of_lines(
    heads: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: Container[str], bold: Container[int] = ()
) -> tuple[Column, ...]:
    """Return the columns of a table that is given in lines; `numbers` are the heads of its columns of numbers."""
    cells = zip(*lines, strict=True) if lines else ((),) * len(heads)
    styles = tuple("bold" if row in bold else "" for row in range(len(lines)))
    return tuple(
        Column(head=(head, ""), cells=tuple(column), is_number=head in numbers, styles=styles)
        for head, column in zip(heads, cells, strict=True)
    )


def _each_once(cells: Iterable[str]) -> tuple[str, ...]:
    """Return the cells, equal ones as one object: of the 100,000 numbers of a table only a few hundred differ."""
    made, first = list(cells), dict[str, str]()
    return tuple(map(first.setdefault, made, made))


def telling(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns without those that are empty."""
    return tuple(column for column in columns if any(cell != MISSING for cell in column.cells))


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A title, lines above, columns, and lines below; any of them may be missing.

    Every view makes tables, and terminal, Markdown, HTML and LaTeX render any of them.
    """

    title: str = ""
    above: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    cuts: tuple[int, ...] = (1,)  # where a narrow screen may cut the columns; those before the first are repeated
    below: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # of the rows: ok, frontier, bad or invalid; empty: none

    @property
    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells, row by row."""
        return zip(*(column.cells for column in self.columns), strict=True)


def body(table: Table, *, width: int | None, encoding: str = "utf-8") -> Text:
    """Lay out the columns of a table: in as few pieces as the width allows, else as a block for each row."""
    columns = [
        msgspec.structs.replace(
            column,
            head=plain_cells(column.head, encoding=encoding),
            cells=plain_cells(column.cells, encoding=encoding),
        )
        for column in table.columns
    ]
    dim = {row for row, mark in enumerate(table.marks) if mark == "invalid"}
    sizes = [_sizes(column) for column in columns]

    def fitting(places: Sequence[int]) -> list[int] | None:
        return _widths([sizes[place] for place in places], width)

    names, shown = [*range(min(len(columns), table.cuts[0]))], list[list[int]]()
    for first, last in pairwise((*table.cuts, len(columns))):
        piece = [*range(first, last)]
        alone, beside = fitting([*names, *piece]), fitting([*shown[-1], *piece]) if shown else None
        if beside is not None and (alone is None or beside[: len(names)] >= alone[: len(names)]):  # names are as wide
            shown[-1] += piece
        elif alone is not None:
            shown.append([*names, *piece])
        else:
            return Text("\n\n").join([_block(columns, row, width, dim) for row in range(len(columns[0].cells))])
    return Text("\n\n").join([_grid([columns[place] for place in part], fitting(part) or [], dim) for part in shown])


def _grid(columns: Sequence[Column], widths: Sequence[int], dim: Set[int]) -> Text:
    """Return the columns side by side; text columns break over several lines, number columns never do."""
    heads = [_padded([column.head[line] for column in columns], columns, widths) for line in (0, 1)]
    lines = [GAP.join(head).rstrip() for head in heads if any(map(str.strip, head))]
    styles = [(at, 0, len(line), "bold") for at, line in enumerate(lines)]
    lines.append(GAP.join("-" * size for size in widths))
    is_styled = any(column.styles for column in columns) and len(columns[0].cells) <= MOST_STYLED
    cells = [_set(column, size) for column, size in zip(columns, widths, strict=True)]
    for row, texts in enumerate(zip(*cells, strict=True)):
        is_broken = None in texts
        for parts in _row([column.cells[row] for column in columns], columns, widths) if is_broken else [texts]:
            line = GAP.join(parts).rstrip()
            styles += [(len(lines), 0, len(line), "dim")] if row in dim else []
            styles += [(len(lines), *span) for span in _spans(columns, parts, row)] if is_styled else []
            lines.append(line)
    return _text(lines, styles)


def _block(columns: Sequence[Column], row: int, width: int | None, dim: Set[int]) -> Text:
    """Return one row as its name and lines of `label  value`, for widths at which no table fits.

    If most of the values were not measured, those are left out.
    """
    name, *rest = columns
    measured = [column for column in rest if column.cells[row] != MISSING]
    rest = measured if len(measured) < len(rest) / 2 else rest
    labels = max((_length(column.label) for column in rest), default=0)
    digits = max((_length(column.cells[row]) for column in rest if column.is_number), default=0)
    room = 10**9 if width is None else max(1, width - labels - len(GAP))
    lines, styles = [name.cells[row]], [(0, 0, len(name.cells[row]), "bold")]
    for column in rest:
        cell, style = column.cells[row], column.styles[row] if column.styles else ""
        parts = [_pad(cell, digits, right=True)] if column.is_number else broken(cell, room)
        for label, part in zip([column.label, *[""] * len(parts)], parts, strict=False):
            line = f"{_pad(label, labels)}{GAP}{part}".rstrip()
            styles += [(len(lines), 0, len(line), "dim")] if row in dim else []
            styles += [(len(lines), len(line) - len(part.strip()), len(line), style)] if style else []
            lines.append(line)
    return _text(lines, styles)


class Harmless(str):
    """Text that is known to have no control characters: `translate`, by which rich removes them, does nothing."""

    __slots__ = ()

    def translate(self, table: object) -> str:
        return self


def _text(lines: Sequence[str], styles: Sequence[tuple[int, int, int, str]]) -> Text:
    """Return the lines with their styles, each from a character to another of a line."""
    text = Text(Harmless("\n".join(lines)))  # one text: rich takes a second to join 30,000
    starts = [0, *(len(line) + 1 for line in lines)]
    for at in range(1, len(starts)):
        starts[at] += starts[at - 1]
    for line, first, last, style in styles:
        text.stylize(style, starts[line] + first, starts[line] + last)
    return text


def broken(text: str, width: int) -> list[str]:
    """Breaks the text at spaces into lines of at most `width`; a word that is wider is broken behind commas and colons.

    A piece that is still wider gets a line of its own and is not cut.
    """
    if _length(text) <= width:
        return [text.rstrip()]
    lines = [""]
    pieces = ([word] if _length(word.rstrip()) <= width else PIECE.findall(word) for word in WORD.findall(text))
    for piece in chain.from_iterable(pieces):
        if lines[-1] and _length(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _sizes(column: Column) -> tuple[int, int]:
    """Return the width that a column takes, and the least to which it may shrink."""
    cells = set(column.cells)
    natural = max(map(_length, chain(column.head, cells)))
    if column.is_number:
        return natural, natural
    pieces = (piece.rstrip() for text in cells for piece in PIECE.findall(text))
    return natural, max(map(_length, chain(column.head, pieces)))  # heads are not broken


def _widths(sizes: Sequence[tuple[int, int]], width: int | None) -> list[int] | None:
    """Return the widths of columns of these sizes; None if a number or a piece of text would have to be cut."""
    natural, least = [size for size, _ in sizes], [size for _, size in sizes]
    if width is None:
        return natural
    excess = sum(natural) + len(GAP) * (len(sizes) - 1) - width
    while excess > 0:  # shrink the widest text columns first, together, down to the width of the next one
        giving = [index for index in range(len(sizes)) if natural[index] > least[index]]
        if not giving:
            return None
        widest = max(natural[index] for index in giving)
        first = [index for index in giving if natural[index] == widest]
        stops = [natural[index] for index in giving if natural[index] < widest] + [least[index] for index in first]
        turns = min(widest - max(stops), excess // len(first))
        for index in first if turns else first[:excess]:
            natural[index] -= turns or 1
        excess -= turns * len(first) if turns else excess
    return natural


def _set(column: Column, width: int) -> Iterable[str | None]:
    """Return the cells padded to the width of the column, each distinct one made once; None for one that is broken."""
    cells = set(column.cells)
    if column.is_number:
        made: dict[str, str | None] = {cell: _pad(cell, width, right=True) for cell in cells}
    else:
        made = {cell: _pad(cell.rstrip(), width) if _length(cell) <= width else None for cell in cells}
    return map(made.__getitem__, column.cells)


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[list[str]]:
    """Return the lines of a row with a broken cell, each as its padded parts."""
    parts = [
        [cell] if column.is_number else broken(cell, size)
        for cell, size, column in zip(cells, widths, columns, strict=True)
    ]
    return [_padded(line, columns, widths) for line in zip_longest(*parts, fillvalue="")]


def _spans(columns: Sequence[Column], texts: Sequence[str], row: int) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and style of the styled cells of a line, without the blanks that align them."""
    start = 0
    for column, text in zip(columns, texts, strict=True):
        if column.styles and column.styles[row] and text.strip():
            yield start + len(text) - len(text.lstrip()), start + len(text.rstrip()), column.styles[row]
        start += len(text) + len(GAP)


def _padded(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [_pad(text, size, right=column.is_number) for text, size, column in zip(texts, widths, columns, strict=True)]


def _length(text: str) -> int:
    """Return the width of the text on a screen, in columns."""
    return len(text) if text.isascii() else cell_len(text)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    if not text.isascii():
        width += len(text) - cell_len(text)
    return text.rjust(width) if right else text.ljust(width)


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
