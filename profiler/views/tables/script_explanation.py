"""Where the peak of a script sits, as text and as a document: its phase, its line, and what held it if known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich.table import Table

from profiler.core.script import Holder
from profiler.core.units import bytes_text
from profiler.scripts.report import Process, Variant, phase_name, phase_text
from profiler.views.sanitize import plain
from profiler.views.tables.grid import of_lines
from profiler.views.tables.script import console, sentence
from profiler.views.tables.terminal import ruled

SCHEMA = 1
MOST = 5  # phases


def write(variants: Sequence[Variant], *, file: TextIO, width: int | None, color: str) -> None:
    """Print the sentence of each variant, and for each process what its peak is made of."""
    screen = console(file=file, width=width, color=color)
    for variant in variants:
        screen.print(plain(sentence(variant)), soft_wrap=True)
        for process in variant.processes:
            for line in lines(process, variant.processes):
                screen.print(line, soft_wrap=True)
            held = process.peak.holders
            if process.outcome == "out_of_memory" and process.shortage_holders:
                screen.print("  live when memory ran out:")
                held = process.shortage_holders
            if held:
                screen.print(_holders_table(held))
            for growth in process.growth:
                screen.print(f"  grows: {plain(growth.line)}, {bytes_text(growth.nbytes)} in {growth.num_steps} steps")


def lines(process: Process, among: Sequence[Process]) -> Iterator[str]:
    """Yield what is known of the peak of a process, in words; lines below the first are indented."""
    first, *rest = map(plain, _lines(process, among))
    yield first
    yield from (f"  {line}" for line in rest)


def _lines(process: Process, among: Sequence[Process]) -> Iterator[str]:
    peak, most = process.peak, process.most_reserved
    who = ", ".join(filter(None, (process.label(among), process.module or "no model")))
    where = f", at {peak.line}" if peak.line else ""
    start = next((phase for phase in process.phases if phase.name == "start"), None)
    yield f"{who}: the peak, {bytes_text(peak.peak_bytes)}, is in {phase_text(peak)}{where}"
    if peak.live_bytes is not None:
        yield f"{bytes_text(peak.live_bytes)} are live when that phase ends"
    if start and start is not peak:
        yield f"{bytes_text(start.live_bytes)} were live before the first step: weights, and what was loaded"
    if process.reserved_bytes is not None:
        kept = f"{bytes_text(process.reserved_bytes)} are reserved"
        yield kept + (f", first so in {phase_text(most)}" if most is not peak else ", in the same phase")
    others = sorted(
        (phase for phase in process.phases if phase is not peak), key=lambda phase: -(phase.peak_bytes or 0)
    )
    near = [f"{phase_name(phase)} {bytes_text(phase.peak_bytes)}" for phase in others[:MOST]]
    if near:
        yield f"next: {'; '.join(near)}"
    if process.holders_why:
        yield f"what held it is not known: {process.holders_why}"
    if process.outcome != "ok":
        yield f"{process.outcome.replace('_', ' ')}: {process.detail or 'it ended without a word'}"


def document(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return one document: for each process of each variant the phase with its peak, and that which reserves most."""
    found = [
        {
            "words": variant.words,
            "outcome": variant.outcome,
            "processes": [
                {
                    "rank": process.rank, "model": process.module, "outcome": process.outcome,
                    "peak": process.peak, "reserved": process.most_reserved, "growth": process.growth,
                }
                for process in variant.processes
            ],
        }
        for variant in variants
    ]  # fmt: skip
    return {"schema": SCHEMA, "variants": found}


def _holders_table(held: Sequence[Holder]) -> Table:
    lines = [
        (bytes_text(holder.nbytes), str(holder.num), *map(plain, (holder.category, holder.line, holder.module)))
        for holder in held
    ]
    return ruled(of_lines(("held", "blocks", "what", "line", "module"), lines, numbers=("held", "blocks")))
