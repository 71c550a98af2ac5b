"""Explanations, timelines and plans as a notebook shows them: HTML with pictures, and Markdown without."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from profiler.analysis import live_bytes
from profiler.analysis.explanation import Explanation
from profiler.core.trace_data import Trace
from profiler.core.units import bytes_text, change_text
from profiler.views.export.markdown import bullets, escaped, page, table_text
from profiler.views.tables import html
from profiler.views.tables.explanation import live_tables, remedies_text, sentences, where
from profiler.views.tables.grid import Column, numbers, words


def explanation_html(explained: Explanation, *, title: str, notes: Sequence[str]) -> str:
    """Return the explanation as a page: sentences, two tables side by side, what could lower the peak, notes."""
    tables = "".join(f'<td style="vertical-align:top">{html.table(columns)}</td>' for columns in live_tables(explained))
    said = [html.line(in_python(line)) for line in sentences(explained)]
    below = [html.line(line) for line in _below(explained, notes)]
    return html.page([html.heading(title), *said, f'<table style="{html.TABLE}"><tr>{tables}</tr></table>', *below])


def explanation_markdown(explained: Explanation, *, title: str, notes: Sequence[str]) -> str:
    """Return the same as Markdown."""
    tables = [table_text(columns) for columns in live_tables(explained)]
    said, below = bullets(sentences(explained)), bullets(_below(explained, notes))
    return "\n\n".join([f"### {escaped(title)}", said, *tables, below]) + "\n"


def in_python(text: str) -> str:
    """Return the text with the command line's `--blocks 'x'` as Python's `blocks='x'`."""
    return re.sub(r"--blocks (?=')", "blocks=", text).replace("--blocks", "blocks")


def _below(explained: Explanation, notes: Sequence[str]) -> list[str]:
    remedies = [remedies_text(explained)] if explained.remedies else []
    return [*remedies, *(f"note: {note}" for note in notes)]


def timeline_columns(traces: Mapping[str, Trace]) -> tuple[Column, ...]:
    """Return a row per strategy: its peak, its change against the first, and where the peak is."""
    peaks = [live_bytes.peak(trace) for trace in traces.values()]
    first = peaks[0].nbytes
    changes = [change_text(peak.nbytes / first if number and first else None) for number, peak in enumerate(peaks)]
    return (
        words("strategy", "", traces),
        numbers("peak", "", [bytes_text(peak.nbytes) for peak in peaks]),
        *([numbers("against", "the first", changes)] if len(peaks) > 1 else []),
        words("at", "", [where(peak) for peak in peaks]),
    )


def table_html(columns: Sequence[Column], *, title: str, below: Sequence[str] = (), png: bytes | None = None) -> str:
    """Return one table under its title, with lines and an optional picture below it."""
    shown = [html.picture(png, about=title)] if png else []
    return html.page([html.heading(title), html.table(columns), *map(html.line, below), *shown])


def table_markdown(columns: Sequence[Column], *, title: str, below: Sequence[str] = ()) -> str:
    """Return one table under its title, with lines below it as a list."""
    return page([f"### {escaped(title)}", table_text(columns), bullets(below)])


def png(draw: Callable[[Path], object]) -> bytes:
    """Return the bytes of the picture that `draw` writes to a path."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw(path)
        return path.read_bytes()
