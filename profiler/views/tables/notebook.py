"""A run in a notebook: its table as HTML, and its rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row
from profiler.core.units import count_text
from profiler.views.tables import html
from profiler.views.tables.columns import below, columns, groups, heading

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # integers stay so beside NA

MOST = 100  # rows of a table: more make a page slow


def page(rows: Sequence[Row], *, status: str) -> str:
    """Return every group of rows as a table, with the reasons and the notes below it. All text is escaped."""
    return html.page([*map(_group, groups(rows)), html.line(f"{count_text(len(rows), 'row')}, {status}")])


def _group(rows: Sequence[Row]) -> str:
    first = rows[:MOST]
    more = len(rows) - len(first)
    lines = below(first)
    lines += [f"and {count_text(more, 'row')} more: to_pandas() holds them all"] if more else []
    invalid = {number for number, row in enumerate(first) if row.outcome == "invalid"}
    table = html.table(columns(first).all, dim=invalid)
    return f"{html.heading(heading(rows))}{table}{''.join(map(html.line, lines))}"


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return one row per case: bytes and seconds, samples as tuples, NA where nothing was measured."""
    lines = [flat_row(row) for row in rows]
    return pd.DataFrame(
        {name: pd.Series([line[name] for line in lines], dtype=KINDS[kind]) for name, kind in COLUMNS.items()}
    )
