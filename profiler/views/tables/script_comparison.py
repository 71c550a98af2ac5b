"""Runs of scripts beside each other, as text and as documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.core.units import MISSING, byte_unit, change_text, scaled
from profiler.scripts.comparison import WHOLE, Comparison, Pair
from profiler.views.export.csv import csv_text, safe
from profiler.views.tables.grid import Column, Table, of_lines

KEYS = ("device", "strategy", "values", "process", "phase")  # of a pair's key
QUANTITIES = ("peak", "reserved")
SCHEMA = 1


def tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return a table for each comparison."""
    return [
        Table(
            title=f"{compared.before} -> {compared.after}",
            columns=_columns(compared),
            below=tuple(f"note: {remark}" for remark in compared.remarks),
        )
        for compared in comparisons
    ]


def csv(comparisons: Sequence[Comparison]) -> str:
    """Return a line for each pair, in bytes."""
    figures = [f"{quantity}_bytes_{side}" for quantity in QUANTITIES for side in ("before", "after")]
    lines: list[list[Any]] = [["run", "against", *KEYS, *figures, "outcome"]]
    for compared in comparisons:
        for pair in compared.pairs:
            sides = (pair.before, pair.after)
            taken = [point and getattr(point, f"{name}_bytes") for name in QUANTITIES for point in sides]
            lines.append([compared.after, compared.before, *pair.key, *taken, pair.after and pair.after.outcome])
    return csv_text([safe(value) for value in line] for line in lines)


def document(comparisons: Sequence[Comparison], *, gate: Sequence[str] | None, exit_code: int) -> dict[str, Any]:
    """Return one document: each pair with its key's parts by name; `gate` is what --fail-on found, None without it."""
    runs = [
        {
            "run": compared.after,
            "against": compared.before,
            "remarks": compared.remarks,
            "pairs": [
                {**dict(zip(KEYS, pair.key, strict=True)), "before": pair.before, "after": pair.after}
                for pair in compared.pairs
            ],
        }
        for compared in comparisons
    ]
    return {"schema": SCHEMA, "exit_code": exit_code, "comparisons": runs, "gate": gate}


def _columns(compared: Comparison) -> tuple[Column, ...]:
    """Return the columns of a table; parts of the key that are the same throughout are left out."""
    points = [point for pair in compared.pairs for point in (pair.before, pair.after) if point]
    size, unit = byte_unit(point.peak_bytes for point in points)
    varying = [at for at, _ in enumerate(KEYS) if len({pair.key[at] for pair in compared.pairs}) > 1 or at == 4]
    heads = [KEYS[at] for at in varying]
    for quantity in QUANTITIES:
        heads += [f"{quantity} {unit}", "now", "change"]
    lines = []
    for pair in compared.pairs:
        figures = [cell for quantity in QUANTITIES for cell in _figures(pair, quantity, size)]
        lines.append([*(pair.key[at] for at in varying), *figures, _line(pair)])
    bold = {at for at, pair in enumerate(compared.pairs) if WHOLE in pair.key}
    return of_lines([*heads, "line"], lines, numbers=set(heads) - set(KEYS), bold=bold)


def _figures(pair: Pair, quantity: str, size: int) -> list[str]:
    taken = [getattr(point, f"{quantity}_bytes") if point else None for point in (pair.before, pair.after)]
    ratio = pair.ratio(quantity)
    change = MISSING if ratio is None else "same" if ratio == 1 else change_text(ratio)
    return [*(scaled(count, size) for count in taken), change]


def _line(pair: Pair) -> str:
    """Return the line at the peak, both where they differ, and an outcome that is not ok."""
    points = [point for point in (pair.before, pair.after) if point]
    lines = " -> ".join(dict.fromkeys(point.line for point in points if point.line))
    bad = [point.outcome.replace("_", " ") for point in points if not point.is_ok and pair.key[-1] == WHOLE]
    return ", ".join([lines, *dict.fromkeys(bad)]) if bad else lines
