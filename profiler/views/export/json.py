"""JSON export: a run as one document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from profiler.analysis import progress
from profiler.core.case import encode
from profiler.core.record import SCHEMA, Evidence, Record, evidence
from profiler.runs.store import Run
from profiler.scripts.records import variants

RecordWithEvidence = msgspec.defstruct(
    "RecordWithEvidence",
    [(field.name, field.type) for field in msgspec.structs.fields(Record)] + [("evidence", Evidence)],
    kw_only=True, frozen=True, gc=False,
)  # fmt: skip


def render(run: Run) -> bytes:
    """Return a run as one JSON document, with the exit code of its command."""
    code = progress.exit_code(run.records)
    if run.is_script:  # of one variant the script's own
        ends = variants(run.records)
        is_bad = any(end.outcome not in ("ok", "out_of_memory", "skipped") for end in ends)
        code = ends[0].exit_code if len(ends) == 1 else int(is_bad)
    return document(run.folder.name, run.records, status=run.status, exit_code=code)


def document(
    run_name: str | None, records: Iterable[Record], *, status: str, exit_code: int, **failure: str | None
) -> bytes:
    """Return one JSON document. `status` is complete, partial or failed; `run_name` is None without a folder.

    Each record gets a field `evidence`, which stored records do not have. `failure` is a message and a hint.
    """
    shown = [
        RecordWithEvidence(**msgspec.structs.asdict(record), evidence=evidence(record.case, record.environment))
        for record in records
    ]
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run_name,
        "status": status,
        "exit_code": exit_code,
        "records": shown,
        **failure,
    }
    return encode(fields) + b"\n"
