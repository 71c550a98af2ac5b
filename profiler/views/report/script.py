"""Runs of scripts as one self-contained HTML page: what each comes to, and its memory by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiler.core.errors import UserError
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.scripts.report import Process, Variant, name_of
from profiler.views.export.script import table, title
from profiler.views.redaction import redacted
from profiler.views.report import LONGEST_COMMAND, LONGEST_NAME, policy, source
from profiler.views.sanitize import plain, short
from profiler.views.tables.script import sentence
from profiler.views.tables.script_explanation import lines

MOST_PROCESSES = 200  # of a run, on a page


def render(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """Return the page in UTF-8; `redact` is default, all or none. Raises UserError if no run has a record."""
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="run the command again")
    loader = PackageLoader("profiler.views", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = source("style.css")
    page = environment.get_template("script.html").render(
        parts=[_part(run) for run in redacted(runs, level=redact)],
        redact=redact,
        style=Markup(style),  # ours; the policy allows it by its hash
        policy=policy(style, ""),
    )
    return page.encode()


def _part(run: Run) -> dict[str, Any]:
    found = variants(run.records)
    num = sum(len(variant.processes) for variant in found)
    left_out = [f"only {MOST_PROCESSES} of {num} processes are shown"] if num > MOST_PROCESSES else []
    is_cut = ["the command was ended from outside"] if run.status == "partial" else []
    return {
        "name": short(run.folder.name, LONGEST_NAME),
        "created": plain(run.manifest.created),
        "command": short(run.manifest.command, LONGEST_COMMAND),
        "remarks": [*(plain(warning) for warning in run.warnings), *is_cut, *left_out],
        "variants": [_variant(variant) for variant in found],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": plain(name_of(variant)),
        "sentence": plain(sentence(variant)),
        "evidence": "rehearsed, not measured" if variant.gpu else "measured",
        "processes": [_process(variant, process) for process in variant.processes[:MOST_PROCESSES]],
    }


def _process(variant: Variant, process: Process) -> dict[str, Any]:
    columns = table(process)
    cells = [[plain(cell) for cell in row] for row in zip(*(column.cells for column in columns), strict=True)]
    peaks = [phase.peak_bytes or 0 for phase in process.phases]
    return {
        "title": plain(title(variant, process)),
        "lines": list(lines(process, variant.processes)),
        "heads": [column.label for column in columns],
        "rows": [{"cells": row, "peak": peak} for row, peak in zip(cells, peaks, strict=True)],
        "most": process.reserved_bytes or process.peak_bytes or 0,
    }
