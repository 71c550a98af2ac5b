"""A run for other programs, in base units: its rows as CSV, or all of it as one JSON document.

A row is a case, or of a script a phase. No cell can run as a formula in a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import COLUMNS, Row, flat_row, rows
from profiler.core.case import encode
from profiler.core.record import SCHEMA, Evidence, Record, evidence
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
RecordWithEvidence = msgspec.defstruct(
    "RecordWithEvidence",
    [(field.name, field.type) for field in msgspec.structs.fields(Record)] + [("evidence", Evidence)],
    kw_only=True, frozen=True, gc=False,
)  # fmt: skip


def lines_of(run: Run) -> tuple[dict[str, type], Iterable[dict[str, Any]]]:
    """Return the columns of a run with their types, and its lines: of a script its phases, else its rows."""
    return (SCRIPT_COLUMNS, _phases(run)) if run.is_script else (COLUMNS, map(flat_row, rows(run.records)))


def render_csv(run: Run) -> bytes:
    """Return a run as a CSV file in UTF-8: bytes, median seconds, raw samples; what was not measured is empty."""
    return _written(*lines_of(run)).encode()


def table(rows: Iterable[Row]) -> str:
    """Return a CSV line per row."""
    return _written(COLUMNS, map(flat_row, rows))


def _written(columns: Mapping[str, type], lines: Iterable[dict[str, Any]]) -> str:
    ways = [(name, WAYS.get(kind, lambda number: number)) for name, kind in columns.items()]
    cells = ([None if line[name] is None else way(line[name]) for name, way in ways] for line in lines)
    return csv_text([columns, *cells])


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


WAYS: dict[type, Callable[[Any], Any]] = {  # how values are written; numbers are unchanged
    str: lru_cache(maxsize=4096)(safe),  # most columns repeat a few values
    tuple: lambda samples: ";".join(map(repr, samples)),
    bool: safe,
}


def _phases(run: Run) -> Iterator[dict[str, Any]]:
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


def render_json(run: Run) -> bytes:
    """Return a run as one JSON document, with the exit code of its command."""
    code = progress.exit_code(run.records)
    if run.is_script:  # of one variant the script's own
        ends = variants(run.records)
        is_bad = any(end.outcome not in ("ok", "out_of_memory", "skipped") for end in ends)
        code = ends[0].exit_code if len(ends) == 1 else int(is_bad)
    return document(run.folder.name, run.records, status=run.status, exit_code=code)


def document(run_name: str | None, records: Iterable[Record], *, status: str, exit_code: int) -> bytes:
    """Return one JSON document. `status` is complete, partial or failed; `run_name` is None without a folder.

    Each record gets a field `evidence`, which stored records do not have.
    """
    shown = [
        RecordWithEvidence(**msgspec.structs.asdict(record), evidence=evidence(record.case, record.environment))
        for record in records
    ]
    fields = {"schema": SCHEMA, "run": run_name, "status": status, "exit_code": exit_code, "records": shown}
    return encode(fields) + b"\n"
