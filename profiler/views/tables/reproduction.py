"""Published figures beside ours, as a table or as JSON."""

from __future__ import annotations

from typing import Any

from profiler.analysis.reproduction import ComparedFigure, Reproduction
from profiler.core.case import encode
from profiler.core.units import MISSING, in_unit_text, spread_text
from profiler.views.tables.evidence import SAID, card, device_word
from profiler.views.tables.grid import Table, of_lines

OTHER_SIZE = "other size"
SAME = "none"
HEADS = ("what", "published", "ours", "difference")


def table(reproduction: Reproduction) -> Table:
    """Return every published figure beside ours, then what the source does not say and what was reduced."""
    columns = of_lines(
        HEADS,
        [(line.what, _published(line), _ours(line), _difference(line)) for line in reproduction.lines],
        numbers=HEADS[2:],
    )
    return Table(title=_heading(reproduction), columns=columns, below=tuple(_below(reproduction)))


def document(reproduction: Reproduction, *, run: str | None, exit_code: int) -> bytes:
    """Return the same as one JSON document, with unrounded numbers."""
    fields: dict[str, Any] = {"run": run, "exit_code": exit_code, "reproduction": reproduction}
    return encode(fields) + b"\n"


def _heading(reproduction: Reproduction) -> str:
    environment = reproduction.environment
    name = card(environment.device_name if environment else None) or device_word(reproduction.device)
    torch = [f"torch {environment.torch}"] if environment and environment.torch else []
    size = "reduced size" if reproduction.reduced else "the published size"
    evidence = [SAID[reproduction.evidence]] if reproduction.evidence in SAID else []
    return ", ".join([f"{reproduction.name}: {reproduction.title}", size, name, *evidence, *torch])


def _published(line: ComparedFigure) -> str:
    if line.published is None:
        return "not given"
    said = str(line.published)
    if isinstance(line.published, (int, float)):  # unrounded
        sign = "+" if line.kind == "change" and line.published > 0 else ""
        said = f"{sign}{line.published:,} {line.unit}".rstrip()
    return f"{said} (by hand)" if line.arithmetic else said


def _ours(line: ComparedFigure) -> str:
    if line.ours is None:
        return "no fit" if line.kind == "number" and line.reason is None and "power" in line.what else MISSING
    if isinstance(line.ours, str):
        return line.ours
    unit = "MiB" if line.unit == "M" else line.unit
    ours = in_unit_text(line.ours, unit, signed=line.kind == "change")
    return ours if line.spread is None else f"{ours} {spread_text(line.spread)}"


def _difference(line: ComparedFigure) -> str:
    if line.ours is None or line.published is None:
        return MISSING
    if line.other_size:
        return OTHER_SIZE
    if line.difference is None:
        are_texts = isinstance(line.ours, str) and isinstance(line.published, str)
        return (SAME if line.ours == line.published else "differs") if are_texts else MISSING
    if line.difference == 0:
        return SAME
    if line.kind in ("change", "share"):
        return in_unit_text(line.difference, "points", signed=True)
    if line.kind == "number" or line.unit == "B" or line.relative is None:
        return in_unit_text(line.difference, line.unit, signed=True)
    return in_unit_text(100 * line.relative, "%", signed=True)


def _below(reproduction: Reproduction) -> list[str]:
    """Return the lines below the table: reasons, notes, units, the source, what it does not say, what was reduced."""
    reasons: dict[str, dict[str, None]] = {}
    for line in reproduction.lines:
        if line.reason:
            reasons.setdefault(line.reason, {})[line.what.partition(": ")[0]] = None
    lines = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    notes = {line.note: line.what for line in reversed(reproduction.lines) if line.note}
    lines += [f"note: {figure}: {note}" for note, figure in reversed(notes.items())]
    if any(line.spread is not None for line in reproduction.lines):
        lines.append(
            "±: half the interquartile range of the steps, its own or the baseline's, or half the range of the rounds"
        )
    if any(line.unit == "M" for line in reproduction.lines):
        lines.append("M: the source does not say which unit; differences take it for MiB")
    lines.append(f"source: {reproduction.source}")
    lines += [f"the source does not say: {'; '.join(reproduction.unsaid)}"] if reproduction.unsaid else []
    if reproduction.reduced:
        lines.append(f"reduced for a CPU: {reproduction.reduced}; --full runs the published size")
    return lines
