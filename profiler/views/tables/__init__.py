"""Tables for a terminal: columns of text under a title, and their layout as lines that fit a screen."""

from __future__ import annotations

import platform
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, groupby, pairwise, zip_longest
from operator import itemgetter
from sys import intern  # of the 100,000 cells of a column only a few hundred differ
from typing import Any, NamedTuple, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from profiler.core.catalogue import KINDS, Entry
from profiler.core.units import MISSING, byte_unit, scaled
from profiler.views import NOTES
from profiler.views.sanitize import plain

GAP = "  "
NUMBER = r"(?<=\d),(?=\d{3}(?!\d))|:(?=\d)|(?<=\bref):"  # not broken behind, as in 1,021, cuda:0 and ref:NAME
UNIT = r"(?<=\d) (?=(?:[KMGT]?i?B|%|[um]?s|FLOPs)(?![\w/]))"  # between a number and its unit; not broken at
MOST_STYLED = 5_000  # rows of a table whose cells are styled: for more, styling takes longer than the rest of the table
WORD = re.compile(rf"(?:[^ ]|{UNIT})+ ?| ")
PIECE = re.compile(rf"(?:[^,: ]|{NUMBER}|{UNIT})*[,: ]?")  # text may break behind a comma, a colon or a space
INDENT = "  "
NOTE = re.compile(r"GCP\d{3}(?!\w)")
Line = list[tuple[str, str]]  # texts, each with its style


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
    return Column(head=(first, second), cells=tuple(map(intern, map(str, cells))), styles=tuple(styles))


def numbers(first: str, second: str, cells: Iterable[str], styles: Iterable[str] = ()) -> Column:
    """Return a column of numbers under a head of two lines."""
    return Column(head=(first, second), cells=tuple(map(intern, cells)), is_number=True, styles=tuple(styles))


def byte_columns(counts: Mapping[str, Sequence[int | None]]) -> tuple[Column, ...]:
    """Return a column of numbers for each head, all in one unit, which stands below the head."""
    size, unit = byte_unit(count for column in counts.values() for count in column)
    return tuple(
        numbers(head or unit, unit if head else "", [scaled(count, size) for count in column])
        for head, column in counts.items()
    )


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
    parts = groupby(chain.from_iterable((*line, ("\n", "")) for line in _laid_out(tables, paper)), key=itemgetter(1))
    joined = Text().append_tokens(("".join(text for text, _ in part), style) for style, part in parts)
    joined.right_crop(1)
    return joined


def _laid_out(tables: Iterable[Table], paper: Paper) -> list[Line]:
    parts = []
    for table in tables:
        head = _paragraph(table.title, paper, style="bold") if table.title else []
        head += [line for text in table.above for line in _paragraph(text, paper)]
        below = [line for text in table.below for line in _paragraph(text, paper)]
        parts.append(_apart([head, _body(table, paper) if table.columns else [], below]))
    return _apart(parts)


def _apart(parts: Iterable[list[Line]]) -> list[Line]:
    """Return the lines of all parts that have some, with an empty line between parts."""
    return [line for part in parts if part for line in ([], *part)][1:]


def _paragraph(text: str, paper: Paper, *, style: str = "") -> list[Line]:
    """Breaks prose from any source to the width, with a hanging indent."""
    lines = broken(plain(text, encoding=paper.encoding), max(20, (paper.width or 10**9) - len(INDENT)))
    return [[(f"{INDENT if at else ''}{line}", style)] for at, line in enumerate(lines)]


def _body(table: Table, paper: Paper) -> list[Line]:
    """Lay out the columns of a table: in as few pieces as the width allows, else as a block for each row."""
    num_rows, columns = len(table.columns[0].cells), list[Column]()
    for column in table.columns:
        plain_of = {text: plain(text, encoding=paper.encoding) for text in {*column.head, *column.cells}}  # only few
        head, cells = (tuple(map(plain_of.__getitem__, texts)) for texts in (column.head, column.cells))
        styles = column.styles if num_rows <= MOST_STYLED else ()
        columns.append(Column(head=(head[0], head[1]), cells=cells, is_number=column.is_number, styles=styles))
    bases = ["dim" if mark == "invalid" else "" for mark in table.marks or [""] * num_rows]
    sizes = [_sizes(column, paper.width) for column in columns]

    def fitting(places: Sequence[int]) -> list[int] | None:
        return _widths([sizes[place] for place in places], paper.width)

    names, shown = [*range(min(len(columns), table.cuts[0]))], list[list[int]]()
    for first, last in pairwise((*table.cuts, len(columns))):
        piece = [*range(first, last)]
        alone, beside = fitting([*names, *piece]), fitting([*shown[-1], *piece]) if shown else None
        if beside is not None and (alone is None or beside[: len(names)] >= alone[: len(names)]):  # names are as wide
            shown[-1] += piece
        elif alone is not None:
            shown.append([*names, *piece])
        else:
            return _apart(_block(columns, row, paper.width, base) for row, base in enumerate(bases))
    return _apart(_grid([columns[place] for place in part], fitting(part) or [], bases) for part in shown)


def _grid(columns: Sequence[Column], widths: Sequence[int], bases: Sequence[str]) -> list[Line]:
    """Return the columns side by side; text columns break over several lines, number columns never do."""
    sized = [*zip(columns, widths, strict=True)]
    heads = [[_pad(column.head[at], size, right=column.is_number) for column, size in sized] for at in (0, 1)]
    lines: list[Line] = [[(GAP.join(head).rstrip(), "bold")] for head in heads if any(map(str.strip, head))]
    lines.append([(GAP.join("-" * size for size in widths), "")])
    parts = []  # of each column, for each row the lines of its cell
    for column, size in sized:
        lines_of = partial(_padded, size=size, right=column.is_number)
        is_repeated = 2 * len({*column.cells}) < len(column.cells)
        parts.append(map(cache(lines_of) if is_repeated else lines_of, column.cells))
    blanks, is_styled = [" " * size for size in widths], any(column.styles for column in columns)
    for row, (cells, base) in enumerate(zip(zip(*parts, strict=True), bases, strict=True)):
        styles = [column.styles[row] if column.styles else "" for column in columns] if is_styled else ()
        for texts in zip_longest(*cells):
            whole = [text or blank for text, blank in zip(texts, blanks, strict=True)] if None in texts else texts
            lines.append(_line(whole, styles, base))
    return lines


def _block(columns: Sequence[Column], row: int, width: int | None, base: str) -> list[Line]:
    """Return one row as its name and lines of `label  value`, for widths at which no table fits."""
    name, *rest = columns
    measured = [column for column in rest if column.cells[row] != MISSING]
    rest = measured if len(measured) < len(rest) / 2 else rest  # where most values are missing, those are left out
    labels = max((_length(column.label) for column in rest), default=0)
    digits = max((_length(column.cells[row]) for column in rest if column.is_number), default=0)
    room = 10**9 if width is None else max(1, width - labels - len(GAP))
    lines: list[Line] = [[(name.cells[row], "bold")]]
    for column in rest:
        cell, style = column.cells[row], column.styles[row] if column.styles else ""
        values = [_pad(cell, digits, right=True)] if column.is_number else broken(cell, room)
        for at, value in enumerate(values):
            lines.append(_line([_pad("" if at else column.label, labels), value], ["", style], base))
    return lines


def _line(texts: Sequence[str], styles: Sequence[str], base: str) -> Line:
    """Return the texts beside each other, the blanks that align them without their styles; all have the base style."""
    if not any(styles):
        return [(GAP.join(texts).rstrip(), base)]
    line: Line = []
    for text, style in zip(texts, styles, strict=True):
        before, word, after = text.partition(text.strip() or " ")
        line += [(before, base), (word, f"{base} {style}".strip()), (f"{after}{GAP}", base)]
    while line and not line[-1][0].strip():
        line.pop()
    return line


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


def _sizes(column: Column, width: int | None) -> tuple[int, int]:
    """Return the width that a column takes, and the least to which it may shrink on a screen of this width."""
    cells = set(column.cells)
    natural = max(map(_length, chain(column.head, cells)))
    if column.is_number or width is None:
        return natural, natural
    pieces = (piece.rstrip() for text in cells for piece in PIECE.findall(text))
    return natural, max(map(_length, chain(column.head, pieces)))  # heads are not broken


def _widths(sizes: Sequence[tuple[int, int]], width: int | None) -> list[int] | None:
    """Return the widths of columns of these sizes, the widest shrunk; None if a number or a word would be cut."""
    room = 10**9 if width is None else width - len(GAP) * (len(sizes) - 1)

    def capped(most: int) -> list[int]:
        return [min(natural, max(least, most)) for natural, least in sizes]

    widest = max(natural for natural, _ in sizes)
    most = bisect_left(range(widest + 1), True, key=lambda most: sum(capped(most + 1)) > room)
    widths, wider = capped(most), capped(most + 1)
    spare = room - sum(widths)
    if spare < 0:
        return None
    for place in reversed(range(len(sizes))):  # one column after the other, the last first, takes what is left
        if spare and wider[place] > widths[place]:
            widths[place], spare = wider[place], spare - 1
    return widths


def _length(text: str) -> int:
    """Return the width of the text on a screen, in columns."""
    return len(text) if text.isascii() else cell_len(text)


def _padded(cell: str, size: int, *, right: bool) -> list[str]:
    return [_pad(line, size, right=right) for line in broken(cell, size)]


def _pad(text: str, width: int, *, right: bool = False) -> str:
    if not text.isascii():
        width += len(text) - cell_len(text)
    return text.rjust(width) if right else text.ljust(width)


def show(tables: Iterable[Table], *, file: TextIO, width: int | None = None, color: str = "auto") -> None:
    """Print tables, in colors where the file takes them; there the codes of notes are links."""
    paper = Paper(width, getattr(file, "encoding", None) or "utf-8")
    console = colored(file, color)
    if console is None:
        file.writelines(f"{''.join(text for text, _ in line)}\n" for line in _laid_out(tables, paper))  # rich is slow
        return
    with console.capture() as captured:  # rich itself would end the process on a broken pipe
        console.print(text(tables, paper), soft_wrap=True)
    file.write(linked(captured.get()) if file.isatty() else captured.get())


def colored(file: TextIO, color: str) -> Console | None:
    """Return the console of a file that takes colors, else None.

    `color` is auto (only on a terminal and without NO_COLOR), always or never.
    """
    ways: dict[str, Any] = {"always": {"force_terminal": True, "no_color": False}, "never": {"color_system": None}}
    asked = ways.get(color, {})
    console = Console(file=file, markup=False, highlight=False, emoji=False, legacy_windows=False, **asked)
    is_plain = console.color_system is None or (console.no_color and color == "auto")
    return None if is_plain else console


def linked(text: str) -> str:
    """Return the text with each code of a note as a link of the terminal (OSC 8) to its line in the page of notes.

    The page is the file that comes with gcprof. The fragment is the line, as terminals and editors read it.
    """

    def link(found: re.Match[str]) -> str:
        place = _addresses().get(found[0])
        return f"\x1b]8;;{place}\x1b\\{found[0]}\x1b]8;;\x1b\\" if place else found[0]

    return NOTE.sub(link, text)


@cache
def _addresses() -> dict[str, str]:
    page = NOTES.as_uri().replace("//", f"//{platform.node()}", 1)  # with the host, for a terminal far away
    lines = enumerate(NOTES.read_text(encoding="utf-8").splitlines(), start=1)
    return {line[3:9]: f"{page}#{number}" for number, line in lines if line.startswith("## GCP")}


def listing(entries: Sequence[Entry], *, title: str = "") -> Table:
    """Return a line per name: its options with their defaults, and what it is about."""
    options = [
        " ".join(f"{one.name}={f'<{one.kind}>' if one.default is None else one.default}" for one in entry.options)
        for entry in entries
    ]
    columns = (
        words("name", "", [entry.name for entry in entries]),
        words("options", "", [text or "-" for text in options]),
        words("about", "", [entry.about for entry in entries]),
    )
    return Table(title=title, columns=columns)


def options_of(entry: Entry) -> Table:
    """Return one entry in full, each option with its kind and default."""
    options = entry.options
    columns = (
        words("option", "", [option.name for option in options]),
        numbers("default", "", ["must be given" if option.default is None else option.default for option in options]),
        words("what it takes", "", [KINDS.get(option.kind, option.kind) for option in options]),
    )
    below = () if options else ("no options",)
    return Table(title=entry.name, above=(entry.about,), columns=columns if options else (), below=below)
