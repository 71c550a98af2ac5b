"""What each of several ranks holds, for a screen: knows nothing of files or of commands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rich.text import Text

from profiler.analysis.rows import Row
from profiler.core.record import RankBytes
from profiler.core.units import MISSING, byte_unit, scaled
from profiler.views.tables.columns import Column
from profiler.views.tables.terminal import fitted, paragraph


class _Alike(NamedTuple):
    """Ranks behind each other that hold the same: `0-3`."""

    strategy: str
    numbers: str
    held: RankBytes


def table(rows: Sequence[Row], *, width: int | None = None, encoding: str = "utf-8") -> Text | None:
    """A line for each rank of these rows, or for several that hold the same; None where each is one process."""
    lines = [line for row in rows for line in _lines(row)]
    if not lines:
        return None
    categories = list(dict.fromkeys(name for line in lines for name in line.held.static_bytes))
    size, unit = byte_unit(line.held.peak_bytes for line in lines)

    def numbers(name: str, found: Sequence[int | None]) -> Column:
        return Column(head=(name, unit), cells=tuple(scaled(one, size) for one in found), is_number=True)

    columns = [
        Column(head=("strategy", ""), cells=tuple(line.strategy for line in lines)),
        Column(head=("rank", ""), cells=tuple(line.numbers for line in lines), is_number=True),
        numbers("peak", [line.held.peak_bytes for line in lines]),
        numbers("saved", [line.held.saved_bytes for line in lines]),
        numbers("static", [sum(line.held.static_bytes.values()) for line in lines]),
        *(numbers(name, [line.held.static_bytes.get(name) for line in lines]) for name in categories),
        numbers("gathered at most", [line.held.gathered_bytes for line in lines]),
    ]
    shown = [column for column in columns if set(column.cells) != {MISSING}]
    head = paragraph("each rank, and what is static of it:", width=width, encoding=encoding, style="bold")
    return Text("\n").join([head, fitted(shown, width=width, encoding=encoding)])


def _lines(row: Row) -> list[_Alike]:
    found = []
    for held, several in groupby(enumerate(row.readings.ranks or ()), key=lambda pair: pair[1]):
        numbers = [number for number, _ in several]
        name = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        found.append(_Alike(strategy=str(row.case.strategy), numbers=name, held=held))
    return found
