"""The rows of a run for other programs, in base units, as CSV.

A row is a case, or of a script a phase. No cell can run as a formula in a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from profiler.analysis import flat_row
from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.views.sanitize import plain

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet runs text that starts so as a formula; full-width too  # noqa: RUF001
SCRIPT_COLUMNS: dict[str, type] = {
    "command": str, "device": str, "strategy": str, "values": str, "evidence": str, "process": int, "rank": int,
    "model": str, "outcome": str, "detail": str, "num_steps": int, "phase": str, "is_first_step": bool,
    "first_step": int, "num": int, "peak_bytes": int, "live_bytes": int, "reserved_bytes": int, "line": str,
    "torch": str,
}  # fmt: skip


def render(run: Run) -> bytes:
    """Return a run as a CSV file in UTF-8: bytes, median seconds, raw samples; what was not measured is empty."""
    if run.is_script:
        lines = [SCRIPT_COLUMNS, *(line.values() for line in phases(run))]
        return csv_text([safe("" if value is None else value) for value in line] for line in lines).encode()
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Return a CSV line per row."""

    def cells(row: Row) -> list[Any]:
        values = list(flat_row.flat_row(row).values())
        for place, written in WRITTEN:
            if values[place] is not None:
                values[place] = written(values[place])
        return values

    return csv_text([flat_row.COLUMNS, *map(cells, rows)])


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of values as CSV text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def safe(value: Any) -> Any:
    """Return a value as it is written: booleans in lower case, text on one line and never a formula.

    Text that a spreadsheet would run, or that begins with an apostrophe, gets an apostrophe in front, so that removing
    a leading apostrophe always restores the text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith((*FORMULA, "'")) else text


KINDS: dict[type, Callable[[Any], Any]] = {  # numbers are written unchanged
    str: lru_cache(maxsize=4096)(safe),  # most columns repeat a few values
    tuple: lambda samples: ";".join(map(repr, samples)),
    bool: safe,
}
WRITTEN = [(place, KINDS[kind]) for place, kind in enumerate(flat_row.COLUMNS.values()) if kind in KINDS]


def phases(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase of a script, by SCRIPT_COLUMNS; None if something is not known."""
    for variant in variants(run.records):
        values = [f"{name}={text}" for name, text in variant.words.items() if name not in ("device", "strategy")]
        for place, process in enumerate(variant.processes):
            for phase in process.phases:
                own = {
                    "command": " ".join(variant.command), "device": variant.words["device"],
                    "strategy": variant.words.get("strategy", "none"), "values": ",".join(values),
                    "evidence": "rehearsed" if variant.gpu else "measured", "process": place,
                    "model": process.module, "phase": phase.name,
                }  # fmt: skip
                yield {
                    name: own[name] if name in own else getattr(phase if hasattr(phase, name) else process, name)
                    for name in SCRIPT_COLUMNS
                }
