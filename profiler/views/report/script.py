"""Runs of scripts as one self-contained HTML page: what each comes to, and its memory by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.core.errors import UserError
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.scripts.report import Process, Variant, name_of
from profiler.views.redaction import redacted
from profiler.views.report import LONGEST_COMMAND, LONGEST_NAME, filled
from profiler.views.sanitize import plain, short
from profiler.views.tables.script import explained, process_table, sentence

MOST_PROCESSES = 200  # of a run, on a page


def render(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """Return the page in UTF-8; `redact` is default, all or none. Raises UserError if no run has a record."""
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="run the command again")
    parts = [_part(run) for run in redacted(runs, level=redact)]
    return filled("script.html", script="", parts=parts, redact=redact, hidden="lines")


def _part(run: Run) -> dict[str, Any]:
    found = variants(run.records)
    num = sum(len(variant.processes) for variant in found)
    left_out = [f"only {MOST_PROCESSES} of {num} processes are shown"] if num > MOST_PROCESSES else []
    is_cut = ["the command was ended from outside"] if run.status == "partial" else []
    return {
        "anchor": "run",
        "name": short(run.folder.name, LONGEST_NAME),
        "created": plain(run.manifest.created),
        "command": short(run.manifest.command, LONGEST_COMMAND),
        "remarks": [*map(plain, run.warnings), *is_cut, *left_out],
        "variants": [
            {
                "name": plain(name_of(variant)),
                "sentence": plain(sentence(variant, found)),
                "evidence": "rehearsed, not measured" if variant.gpu else "measured",
                "processes": [_process(variant, process) for process in variant.processes[:MOST_PROCESSES]],
            }
            for variant in found
        ],
    }


def _process(variant: Variant, process: Process) -> dict[str, Any]:
    return {
        "table": process_table([process], variant.processes),
        "lines": [*map(plain, explained(process, variant.processes))],
        "peaks": [phase.peak_bytes or 0 for phase in process.phases],
        "most": process.reserved_bytes or process.peak_bytes or 0,
    }
