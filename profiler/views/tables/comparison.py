"""A comparison of runs as text for a terminal, Markdown, CSV or JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from profiler.analysis.comparison import Cell, Comparison, Match, SideSummary
from profiler.analysis.gates import Judgement
from profiler.analysis.pairing import Contrast
from profiler.core.case import encode
from profiler.views.export.csv import csv_text, safe
from profiler.views.export.markdown import bullets, escaped, page, table_text
from profiler.views.tables.comparison_parts import ComparisonPart, parts
from profiler.views.tables.grid import grid
from profiler.views.tables.terminal import WIDE, Paper, clean, fitted, paragraph, styled

SCHEMA = 1


def table(comparison: Comparison, *, paper: Paper = WIDE) -> Text:
    """Return what differs, then the peak and time of every row, then orders, advice and remarks."""
    return Text("\n\n").join([_drawn(part, paper) for part in parts(comparison)])


def markdown(comparison: Comparison) -> str:
    """Return the same as Markdown."""
    return page(block for part in parts(comparison) for block in _blocks(part))


def _blocks(part: ComparisonPart) -> list[str]:
    heading = f"### {escaped(part.heading)}" if part.heading else ""
    return [heading, bullets(part.above), table_text(part.columns), bullets(part.lines)]


def _drawn(part: ComparisonPart, paper: Paper) -> Text:
    lines = [paragraph(part.heading, paper, style="bold")] if part.heading else []
    lines += [paragraph(line, paper) for line in part.above]
    if part.columns:
        lines += [Text()] if lines else []
        lines.append(_laid_out(part, paper))
    lines += [Text()] if part.columns and part.lines else []
    lines += [paragraph(line, paper) for line in part.lines]
    return Text("\n").join(lines)


def _laid_out(part: ComparisonPart, paper: Paper) -> Text:
    """Return the first that fits: one table; values and changes apart; a table of changes per side; a block per row."""
    name, values, *changes = ([clean(column, paper) for column in piece] for piece in part.pieces)
    together = [column for piece in changes for column in piece]
    for cut in ([values + together], [values, together], [values, *changes]):
        grids = [grid(name + piece, width=paper.width) for piece in cut if piece]
        if all(grids):
            return Text("\n\n").join([styled(lines or []) for lines in grids])
    return fitted(name + values + together, paper)


def csv(comparison: Comparison) -> str:
    """Return a CSV line per row and side, the baseline's too; cells without a value are empty."""
    lines = [
        _csv_line(match, side, cell, match.cells[0])
        for match in comparison.matches
        for side, cell in zip(comparison.sides, match.cells, strict=True)
        if cell
    ]
    heads = [list(line) for line in lines[:1]]
    return csv_text([*heads, *([safe(value) for value in line.values()] for line in lines)])


def document(comparison: Comparison, *, judgement: Judgement | None, exit_code: int) -> bytes:
    """Return one JSON document: the whole comparison, and the result of --fail-on."""
    fields: dict[str, Any] = {"schema": SCHEMA, "exit_code": exit_code, "comparison": comparison, "gate": judgement}
    return encode(fields) + b"\n"


def _csv_line(match: Match, side: SideSummary, cell: Cell, baseline: Cell | None) -> dict[str, Any]:
    return {
        **match.key,
        "side": side.label,
        "run": side.run,
        "device": side.device,
        "predicted": cell.predicted,
        "evidence": cell.evidence,
        "baseline_evidence": baseline.evidence if baseline else None,
        "outcome": cell.outcome,
        "detail": cell.detail,
        "peak_bytes": cell.peak_bytes,
        **_against("peak", cell.peak),
        "step_seconds": cell.step_seconds,
        **_against("time", cell.time),
    }


def _against(quantity: str, contrast: Contrast | None) -> dict[str, Any]:
    names = ("ratio", "low", "high", "verdict")
    return {f"{quantity}_{name}": getattr(contrast, name) if contrast else None for name in names}
