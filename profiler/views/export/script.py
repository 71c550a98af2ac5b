"""The run of a script for other programs: one row a phase, as CSV, Markdown and LaTeX; as Parquet in parquet.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from profiler.core.script import Phase
from profiler.core.units import byte_unit, scaled
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.scripts.report import Process, Variant, name_of, phase_name
from profiler.views.export.csv import csv_text, safe
from profiler.views.export.latex import table_of
from profiler.views.export.markdown import bullets, escaped, page, table_text
from profiler.views.tables.grid import Column, of_lines
from profiler.views.tables.script import sentence

COLUMNS: dict[str, type] = {
    "command": str, "device": str, "strategy": str, "values": str, "evidence": str, "process": int, "rank": int,
    "model": str, "outcome": str, "detail": str, "num_steps": int, "phase": str, "is_first_step": bool,
    "first_step": int, "num": int, "peak_bytes": int, "live_bytes": int, "reserved_bytes": int, "line": str,
    "torch": str,
}  # fmt: skip
HEADS = ("phase", "times", "peak", "live", "reserved", "line")


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase, by COLUMNS; None where something is not known. Bytes."""
    for variant in variants(run.records):
        for place, process in enumerate(variant.processes):
            for phase in process.phases:
                yield _row(variant, process, place, phase)


def csv(run: Run) -> bytes:
    """Return a line for each phase."""
    lines = [COLUMNS, *(row.values() for row in rows(run))]
    return csv_text([safe("" if value is None else value) for value in line] for line in lines).encode()


def markdown(run: Run) -> bytes:
    """Return a table for each process, below what its variant comes to."""
    blocks: list[str] = []
    for variant in variants(run.records):
        blocks += [f"### {escaped(name_of(variant))}", escaped(sentence(variant))]
        for process in variant.processes:
            blocks += [bullets([title(variant, process)]), table_text(table(process))]
    return page(blocks).encode()


def latex(run: Run) -> bytes:
    """Return a table for each process, with booktabs, to be read by \\input."""
    texts = [
        table_of(table(process), caption=f"{sentence(variant)} ({title(variant, process)})")
        for variant in variants(run.records)
        for process in variant.processes
    ]
    return "\n".join(["% needs \\usepackage{booktabs} and, for its width, \\usepackage{graphicx}", *texts]).encode()


def _row(variant: Variant, process: Process, place: int, phase: Phase) -> dict[str, Any]:
    values = [f"{name}={text}" for name, text in variant.words.items() if name not in ("device", "strategy")]
    own = {
        "command": " ".join(variant.command), "device": variant.words["device"],
        "strategy": variant.words.get("strategy", "none"), "values": ",".join(values),
        "evidence": "rehearsed" if variant.gpu else "measured", "process": place, "model": process.module,
        "phase": phase.name,
    }  # fmt: skip
    found = {}
    for name in COLUMNS:
        part = next((part for part in (phase, process) if hasattr(part, name)), None)
        found[name] = own[name] if name in own else getattr(part, name)
    return found


def table(process: Process) -> tuple[Column, ...]:
    """Return the table of the phases of a process."""
    size, unit = byte_unit(phase.peak_bytes for phase in process.phases)
    heads = [f"{head} {unit}" if head in ("peak", "live", "reserved") else head for head in HEADS]
    lines = []
    for phase in process.phases:
        taken = (phase.peak_bytes, phase.live_bytes, phase.reserved_bytes)
        lines.append([phase_name(phase), str(phase.num), *(scaled(count, size) for count in taken), phase.line])
    return of_lines(heads, lines, numbers=heads[1:5])


def title(variant: Variant, process: Process) -> str:
    """Return what a process is called: its model, its rank, its steps."""
    steps = f"{process.num_steps} step{'' if process.num_steps == 1 else 's'}"
    return ", ".join(filter(None, (process.module or "no model", process.label(variant.processes), steps)))
