"""A published system beside ours, for a screen, as Markdown or as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from profiler.analysis.reproduction import ComparedFigure, Reproduction
from profiler.core.case import FAKE, encode
from profiler.core.gpu_kinds import is_hollow
from profiler.core.units import MISSING, in_unit_text, spread_text
from profiler.views.export.markdown import escaped, table_line
from profiler.views.tables.grid import Column
from profiler.views.tables.terminal import fitted, titled

OTHER_SIZE = "other size"
SAME = "none"
HEADS = ("what", "published", "ours", "difference")


def table(found: Reproduction, *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """Returns every published figure beside ours, then what the source does not say and what was reduced."""
    cells = [_cells(line) for line in found.lines]
    columns = [
        Column(head=(head, ""), cells=tuple(row[index] for row in cells), is_number=index > 0 and head != "published")
        for index, head in enumerate(HEADS)
    ]
    body = fitted(columns, width=width, encoding=encoding)
    return titled(_heading(found), body, _below(found), width=width, encoding=encoding)


def markdown(found: Reproduction) -> str:
    """The same as Markdown."""
    rows = [table_line(HEADS), "| --- | ---: | ---: | ---: |", *(table_line(_cells(one)) for one in found.lines)]
    below = [f"- {escaped(text)}" for text in _below(found)]
    return "\n".join([f"### {escaped(_heading(found))}", "", *rows, "", *below, ""])


def document(found: Reproduction, *, run: str | None, exit_code: int) -> bytes:
    """The same as one JSON document, numbers as they are."""
    whole: dict[str, Any] = {"run": run, "exit_code": exit_code, "reproduction": found}
    return encode(whole) + b"\n"


def _heading(found: Reproduction) -> str:
    environment = found.environment
    name = environment.device_name if environment and environment.device_name else found.device
    torch = [f"torch {environment.torch}"] if environment and environment.torch else []
    size = "reduced size" if found.reduced else "the published size"
    kind = "predicted" if found.device.startswith(FAKE) else "rehearsed" if is_hollow(name) else None
    said = [f"{kind}, not measured"] if kind else []
    return ", ".join([f"{found.name}: {found.title}", size, name, *said, *torch])


def _cells(line: ComparedFigure) -> tuple[str, str, str, str]:
    return line.what, _published(line), _ours(line), _difference(line)


def _published(line: ComparedFigure) -> str:
    if line.published is None:
        return "not given"
    text = _number(line, line.published) if isinstance(line.published, (int, float)) else line.published
    return f"{text} (by hand)" if line.arithmetic else text


def _ours(line: ComparedFigure) -> str:
    if line.ours is None:
        return "no fit" if line.kind == "number" and line.reason is None and "power" in line.what else MISSING
    if isinstance(line.ours, str):
        return line.ours
    unit = "MiB" if line.unit == "M" else line.unit
    text = in_unit_text(line.ours, unit, signed=line.kind == "change")
    return text if line.spread is None else f"{text} {spread_text(line.spread)}"


def _number(line: ComparedFigure, value: float) -> str:
    """A published number as it was published."""
    sign = "+" if line.kind == "change" and value > 0 else ""
    return f"{sign}{value:,} {line.unit}".rstrip()


def _difference(line: ComparedFigure) -> str:
    if line.ours is None or line.published is None:
        return MISSING
    if line.other_size:
        return OTHER_SIZE
    if line.difference is None:
        both = isinstance(line.ours, str) and isinstance(line.published, str)
        return (SAME if line.ours == line.published else "differs") if both else MISSING
    if line.difference == 0:
        return SAME
    if line.kind in ("change", "share"):
        return in_unit_text(line.difference, "points", signed=True)
    if line.kind == "number" or line.unit == "B" or line.relative is None:
        return in_unit_text(line.difference, line.unit, signed=True)
    return in_unit_text(100 * line.relative, "%", signed=True)


def _below(found: Reproduction) -> list[str]:
    """Returns the lines below the table: reasons, notes, units, the source, what it does not say, what was reduced."""
    reasons: dict[str, dict[str, None]] = {}
    for line in found.lines:
        if line.reason:
            reasons.setdefault(line.reason, {})[line.what.partition(": ")[0]] = None
    said = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    notes = {line.note: line.what for line in reversed(found.lines) if line.note}
    said += [f"note: {what}: {note}" for note, what in reversed(notes.items())]
    if any(line.spread is not None for line in found.lines):
        said.append(
            "±: half the interquartile range of the steps, its own or the baseline's, or half the range of the rounds"
        )
    if any(line.unit == "M" for line in found.lines):
        said.append("M: the source does not say of what; differences take it for MiB")
    said.append(f"source: {found.source}")
    said += [f"the source does not say: {'; '.join(found.unsaid)}"] if found.unsaid else []
    if found.reduced:
        said.append(f"reduced for a CPU: {found.reduced}; --full runs the published size")
    return said
