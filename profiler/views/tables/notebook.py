"""A run in a notebook: its table as HTML, and its rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec
import pandas as pd

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row
from profiler.core.units import count_text
from profiler.views.sanitize import plain
from profiler.views.tables.columns import below, columns, groups, heading
from profiler.views.tables.grid import Column

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # whole numbers stay so

MOST = 100  # rows of a table: more make a page slow, and are better asked for by code
TABLE = "border-collapse:collapse;font-size:13px"
NUMBER, WORDS = "padding:2px 8px;text-align:right;white-space:nowrap", "padding:2px 8px;text-align:left"
DIM = ' style="opacity:0.5"'


def page(rows: Sequence[Row], *, status: str) -> str:
    """Every group of rows as a table, with the reasons and the notes below it. All text is escaped."""
    parts = [_group(group) for group in groups(rows)]
    parts.append(_line(f"{count_text(len(rows), 'row')}, {status}"))
    return f"<div>{''.join(parts)}</div>"


def _group(rows: Sequence[Row]) -> str:
    first = rows[:MOST]
    shown = columns(first).all
    head = "".join(f'<th style="{_style(column)}">{_text(column.label)}</th>' for column in shown)
    body = "".join(_row(shown, number, row) for number, row in enumerate(first))
    more = len(rows) - len(first)
    lines = below(first)
    lines += [f"and {count_text(more, 'row')} more: to_pandas() holds them all"] if more else []
    table = f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<p><b>{_text(heading(rows))}</b></p>{table}{''.join(_line(line) for line in lines)}"


def _row(shown: Sequence[Column], number: int, row: Row) -> str:
    cells = "".join(f'<td style="{_style(column)}">{_text(column.cells[number])}</td>' for column in shown)
    return f"<tr{DIM if row.outcome == 'invalid' else ''}>{cells}</tr>"


def _style(column: Column) -> str:
    return NUMBER if column.is_number else WORDS


def _line(text: str) -> str:
    return f'<div style="font-size:12px">{_text(text)}</div>'


def _text(text: str) -> str:
    return escape(plain(text))


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One line a case; bytes and seconds, samples as tuples, NA where it was not measured."""
    lines = [msgspec.structs.asdict(flat_row(row)) for row in rows]
    return pd.DataFrame(
        {name: pd.Series([line[name] for line in lines], dtype=KINDS[kind]) for name, kind in COLUMNS.items()}
    )
