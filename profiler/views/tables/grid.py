"""Columns of text, and their layout as lines that fit a width."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence, Set
from itertools import chain, zip_longest

import msgspec
from rich.cells import cell_len

GAP = "  "
NUMBER = r"(?<=\d),(?=\d{3}(?!\d))|:(?=\d)|(?<=\bref):"  # not broken behind, as in 1,021, cuda:0 and ref:NAME
UNIT = r"(?<=\d) (?=(?:[KMGT]?i?B|%|[um]?s|FLOPs)(?![\w/]))"  # between a number and its unit; not broken at
MOST_STYLED = 5_000  # rows of a table whose cells are styled: for more, styling takes longer than the rest of the table
WORD = re.compile(rf"(?:[^ ]|{UNIT})+ ?| ")
PIECE = re.compile(rf"(?:[^,: ]|{NUMBER}|{UNIT})*[,: ]?")  # text may break behind a comma, a colon or a space


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


def of_lines(heads: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: Container[str]) -> tuple[Column, ...]:
    """Return the columns of a table that is given in lines; `numbers` are the heads of its columns of numbers."""
    cells = zip(*lines, strict=True) if lines else ((),) * len(heads)
    return tuple(
        Column(head=(head, ""), cells=tuple(column), is_number=head in numbers)
        for head, column in zip(heads, cells, strict=True)
    )


def _each_once(cells: Iterable[str]) -> tuple[str, ...]:
    """Return the cells, equal ones as one object: of the 100,000 numbers of a table only a few hundred differ."""
    made, first = list(cells), dict[str, str]()
    return tuple(map(first.setdefault, made, made))


class GridLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a laid-out table, and the row that it shows: -1 in the head, -2 in the rule."""

    row: int
    text: str
    spans: tuple[tuple[int, int, str], ...] = ()  # start and end in characters of the text, and the style there


def grid(columns: Sequence[Column], *, width: int | None) -> list[GridLine] | None:
    """Return the table in lines no wider than `width`; None if a number would have to be cut.

    Text columns break over several lines, number columns never do. With a width of None no line is broken.
    """
    distinct = [set(column.cells) for column in columns]
    widths = _widths(columns, width, distinct)
    if widths is None:
        return None
    lines = [GridLine(row=-1, text=text) for text in _head(columns, widths)]
    lines.append(GridLine(row=-2, text=GAP.join("-" * column_width for column_width in widths)))
    cells = [_set(column, size, texts) for column, size, texts in zip(columns, widths, distinct, strict=True)]
    is_styled = any(column.styles for column in columns) and len(columns[0].cells) <= MOST_STYLED
    for row, texts in enumerate(zip(*cells, strict=True)):
        is_broken = None in texts
        for parts in _row([column.cells[row] for column in columns], columns, widths) if is_broken else [texts]:
            spans = _spans(columns, parts, row) if is_styled else ()
            lines.append(GridLine(row=row, text=GAP.join(parts).rstrip(), spans=spans))
    return lines


def _spans(columns: Sequence[Column], texts: Sequence[str], row: int) -> tuple[tuple[int, int, str], ...]:
    """Return the spans of the styled cells of a line, without the blanks that align them."""
    spans, start = [], 0
    for column, text in zip(columns, texts, strict=True):
        if column.styles and column.styles[row] and text.strip():
            first = start + len(text) - len(text.lstrip())
            spans.append((first, start + len(text.rstrip()), column.styles[row]))
        start += len(text) + len(GAP)
    return tuple(spans)


def block(columns: Sequence[Column], *, row: int, width: int | None = None) -> list[GridLine]:
    """Return one row as lines of `label  value`, for widths at which no table fits."""
    labels = max(_length(column.label) for column in columns)
    values = max((_length(column.cells[row]) for column in columns if column.is_number), default=0)
    room = 10**9 if width is None else max(1, width - labels - len(GAP))
    block_lines = []
    for column in columns:
        cell = column.cells[row]
        style = column.styles[row] if column.styles else ""
        lines = [_pad(cell, values, right=True)] if column.is_number else broken(cell, room)
        words = [column.label, *[""] * (len(lines) - 1)]
        for word, line in zip(words, lines, strict=True):
            text = f"{_pad(word, labels)}{GAP}{line}".rstrip()
            first = len(text) - len(line.strip())
            block_lines.append(GridLine(row=row, text=text, spans=((first, len(text), style),) if style else ()))
    return block_lines


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


def _widths(columns: Sequence[Column], width: int | None, distinct: Sequence[Set[str]]) -> list[int] | None:
    natural = [max(map(_length, chain(column.head, cells))) for column, cells in zip(columns, distinct, strict=True)]
    if width is None:
        return natural
    least = [
        size if column.is_number else _longest_piece(column, cells)
        for size, column, cells in zip(natural, columns, distinct, strict=True)
    ]
    excess = sum(natural) + len(GAP) * (len(columns) - 1) - width
    while excess > 0:  # shrink the widest text columns first, together, down to the width of the next one
        giving = [index for index in range(len(columns)) if natural[index] > least[index]]
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


def _longest_piece(column: Column, cells: Set[str]) -> int:
    pieces = (piece.rstrip() for text in cells for piece in PIECE.findall(text))
    return max(_length(text) for text in (*column.head, *pieces))  # heads are not broken


def _head(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    lines = [[column.head[0] for column in columns], [column.head[1] for column in columns]]
    return [GAP.join(_padded(line, columns, widths)).rstrip() for line in lines if any(line)]


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[list[str]]:
    """Return the lines of a row with a broken cell, each as its padded parts."""
    parts = [
        [cell] if column.is_number else broken(cell, size)
        for cell, size, column in zip(cells, widths, columns, strict=True)
    ]
    return [_padded(line, columns, widths) for line in zip_longest(*parts, fillvalue="")]


def _set(column: Column, width: int, cells: Set[str]) -> Iterable[str | None]:
    """Return the cells padded to the width of the column, each distinct one made once; None for one that is broken."""
    if column.is_number:
        made: dict[str, str | None] = {cell: _pad(cell, width, right=True) for cell in cells}
    else:
        made = {cell: _pad(cell.rstrip(), width) if _length(cell) <= width else None for cell in cells}
    return map(made.__getitem__, column.cells)


def _padded(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [_pad(text, size, right=column.is_number) for text, size, column in zip(texts, widths, columns, strict=True)]


def _length(text: str) -> int:
    """Return the width of the text on a screen, in columns."""
    return len(text) if text.isascii() else cell_len(text)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    if not text.isascii():
        width += len(text) - cell_len(text)
    return text.rjust(width) if right else text.ljust(width)
