"""Several runs side by side for scripts, in base units, as CSV or JSON: knows nothing of how they are compared."""

from __future__ import annotations

import csv
import io
from typing import Any

from profiler.analysis.comparison import Cell, Comparison, Match, SideSummary
from profiler.analysis.gates import Judgement
from profiler.analysis.ratio_test import Contrast
from profiler.core.case import encode
from profiler.views.export.spreadsheet import safe

SCHEMA = 1


def table(found: Comparison) -> str:
    """A line for each row and side, the baseline's too; empty where there is nothing."""
    lines = [
        _line(match, side, cell)
        for match in found.matches
        for side, cell in zip(found.sides, match.cells, strict=True)
        if cell
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: safe(value) for name, value in line.items()} for line in lines])
    return file.getvalue()


def document(found: Comparison, *, judgement: Judgement | None, exit_code: int) -> bytes:
    """One JSON document: all of the comparison, and what --fail-on found."""
    whole: dict[str, Any] = {"schema": SCHEMA, "exit_code": exit_code, "comparison": found, "gate": judgement}
    return encode(whole) + b"\n"


def _line(match: Match, side: SideSummary, cell: Cell) -> dict[str, Any]:
    return {
        **match.key,
        "side": side.label,
        "run": side.run,
        "device": side.device,
        "predicted": cell.predicted,
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
