"""HTML fragments for a notebook: tables, lines and pictures, self-contained and without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from html import escape

from profiler.views.sanitize import plain
from profiler.views.tables.grid import Column

TABLE = "border-collapse:collapse;font-size:13px"
NUMBER, WORDS = "padding:2px 8px;text-align:right;white-space:nowrap", "padding:2px 8px;text-align:left"
DIM = ' style="opacity:0.5"'


def table(columns: Sequence[Column], *, dim: Collection[int] = ()) -> str:
    """Return columns as a table; rows whose indices are in `dim` are shown dim."""
    head = "".join(f'<th style="{_style(column)}">{text(column.label)}</th>' for column in columns)
    rows = range(len(columns[0].cells)) if columns else ()
    lines = (
        "".join(f'<td style="{_style(column)}">{text(column.cells[row])}</td>' for column in columns) for row in rows
    )
    body = "".join(f"<tr{DIM if row in dim else ''}>{line}</tr>" for row, line in enumerate(lines))
    return f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def heading(words: str) -> str:
    """Return one bold line."""
    return f"<p><b>{text(words)}</b></p>"


def line(words: str) -> str:
    """Return one line below a table."""
    return f'<div style="font-size:12px">{text(words)}</div>'


def picture(png: bytes, *, about: str) -> str:
    """Return a picture embedded in the page, at most as wide as there is room."""
    data = b64encode(png).decode()
    return f'<img style="max-width:100%" alt="{text(about)}" src="data:image/png;base64,{data}">'


def page(parts: Sequence[str]) -> str:
    """Return the parts one below the other."""
    return f"<div>{''.join(parts)}</div>"


def text(words: str) -> str:
    """Return words on one line, escaped so that they are shown as they are."""
    return escape(plain(words))


def _style(column: Column) -> str:
    return NUMBER if column.is_number else WORDS
