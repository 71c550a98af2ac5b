"""A plan beside the plans that a user would pick, and whole frontiers, as tables and documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as together
from math import ceil
from typing import Any

import msgspec

from profiler.analysis.rows import Row
from profiler.core.case import encode_indented
from profiler.core.units import (
    MISSING,
    byte_unit,
    bytes_text,
    bytes_texts,
    change_range_text,
    change_text,
    error_text,
    scaled,
    second_unit,
)
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain, Plan, Stage, render
from profiler.planning.chain import words as words_of
from profiler.planning.solver import Point
from profiler.views.export.data import csv_text
from profiler.views.tables.columns import NOISE, UNSURE, ratio_text
from profiler.views.tables.grid import Column, Table, byte_columns, numbers, words

COSTS_OFF = ("costs", "off by")
STAGE_BYTES = {
    "output": "output_bytes",
    "saved": "saved_bytes",
    "backward extra": "backward_extra_bytes",
    "gradients": "gradient_bytes",
}
MARK = "*"  # of the plan that is chosen
MERGED = "where a cut saves nothing, blocks are one stage: `all` is every stage here, not every block"
NOTATION = {"together": r"\[[^\]]+[- ][^\]]+\]", "alone": r"\]\.\.\[", "save": r"[^]:]:(?!host)\w", "host": ":host"}
READING = {  # what is explained if a plan has it
    "together": "[2-3] is one checkpoint",
    "alone": "[4]..[6] are checkpointed each by itself",
    "save": "4:matmul keeps the results of its matmul",
    "host": "[2-3]:host has its input in host memory",
}


class ComparedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint, and what is known of it; one line of the table."""

    way: Way
    predicted: Row | None = None  # by a traced step
    measured: Row | None = None
    is_chosen: bool = False


def workspace_text(chain: Chain, needed_bytes: int) -> str | None:
    """Return why little lowers what a step needs, if half of it or more is a library's workspace; else None."""
    if 2 * chain.workspace_bytes < needed_bytes:
        return None
    taken = f"{bytes_text(chain.workspace_bytes)} are the workspace of matrix products in any case"
    return f"{taken}, which neither a smaller batch nor 16 bits lowers; CUBLAS_WORKSPACE_CONFIG sets its size"


def table(lines: Sequence[ComparedPlan], chain: Chain, *, title: str, none: Way, below: Sequence[str] = ()) -> Table:
    """Return a line per plan; overheads are relative to the step without checkpointing, `none`."""
    return _cut(Table(title=title, columns=way_columns(lines, chain, none), below=tuple(below)))


def frontier(points: Sequence[Point], chain: Chain, none: Way, *, title: str) -> Table:
    """Return a line for each plan of the frontier, the smallest peak first."""
    columns = (
        numbers("peak", "by costs", bytes_texts([point.peak_bytes for point in points])),
        numbers("peak", "against none", [_change(point.peak_bytes, none.cost.peak_bytes) for point in points]),
        numbers("time", "against none", [_change(point.step_seconds, none.cost.step_seconds) for point in points]),
        words("plan", "", [words_of(chain, point.plan) for point in points]),
    )
    return _cut(Table(title=title, columns=columns))


def csv(points: Sequence[Point]) -> bytes:
    """Return the frontier as CSV: bytes, seconds, plan."""
    lines = [(point.peak_bytes, repr(point.step_seconds), render(point.plan)) for point in points]
    return csv_text([("peak_bytes", "step_seconds", "plan"), *lines]).encode()


def reading(chain: Chain, plans: Iterable[Plan]) -> list[str]:
    """Return how to read the text of these plans, in a line; nothing if it needs no explanation."""
    text = " ".join(words_of(chain, plan) for plan in plans)
    notation = [name for name, part in NOTATION.items() if re.search(part, text)]
    lines = [f"a plan names what is recomputed: {', '.join(READING[name] for name in notation)}"] if notation else []
    is_cut = all(len(stage.blocks) < 2 for stage in chain.stages)
    return lines if is_cut else [*lines, MERGED]


def document(
    *, model: str | None, budget_bytes: int | None, none: Way, points: Sequence[Point], lines: Sequence[ComparedPlan],
    facts: Mapping[str, Any],
) -> bytes:  # fmt: skip
    """Return one JSON document, one field per line."""

    def costs(cost: Any) -> dict[str, Any]:
        return {"peak_bytes": cost.peak_bytes, "step_seconds": cost.step_seconds}

    fields = {
        "schema": 1,
        "model": model,
        "budget_bytes": budget_bytes,
        "uncheckpointed": costs(none.cost),
        **facts,
        "ways": [_line(line) for line in lines],
        "frontier": [{**costs(point), "plan": render(point.plan)} for point in points],
    }
    return encode_indented(fields)


def way_columns(lines: Sequence[ComparedPlan], chain: Chain, none: Way) -> tuple[Column, ...]:
    """Return the columns of these plans: their costs, what was predicted or measured, and the plans as text."""
    mark = any(line.is_chosen for line in lines)
    names = [f"{MARK if line.is_chosen else ' '} {line.way.label}" if mark else line.way.label for line in lines]
    rows, costs = [line.measured for line in lines], [line.way.cost.peak_bytes for line in lines]
    kinds = sorted({row.evidence for row in rows if row})
    known = rows if kinds else [line.predicted for line in lines]
    peaks, times = [], []
    if any(known):
        peaks = [numbers("peak", ", ".join(kinds) or "predicted", _peak_texts(known, costs))]
    if kinds not in ([], ["rehearsed"]):
        errors = [error_text(row.prediction_error if row else None) for row in rows]
        peaks.append(numbers("predicted", "off by", errors))
        times = [
            numbers("time", "measured", [_time_change(row) for row in rows]),
            numbers("range", "measured", [_range(row) for row in rows]),
            numbers(*COSTS_OFF, [_cost_error(line, none) for line in lines]),
            words("gradients", "", [row.gradients if row else MISSING for row in rows]),
        ]
    return (
        words("way", "", names, ["bold" if line.is_chosen else "" for line in lines]),
        numbers("peak", "by costs", bytes_texts(costs, *_seen(rows))),
        *peaks,
        numbers("time", "by costs", [_by_costs(line.way, none) for line in lines]),
        *times,
        words("plan", "", [words_of(chain, line.way.plan) for line in lines]),
    )


def _time_change(row: Row | None) -> str:
    ratio = ratio_text(row) if row and row.time else MISSING
    return UNSURE if ratio == NOISE else ratio  # the range beside it says so


def _range(row: Row | None) -> str:
    time = row.time if row else None
    if time is None or time.interval is None:
        return MISSING
    return "too noisy" if time.is_noisy else change_range_text(time.interval)


def _cost_error(line: ComparedPlan, none: Way) -> str:
    """Return the error of the step time by costs against the measured one, both relative to `none`."""
    ratio = line.measured.time_ratio if line.measured else None
    return _change(line.way.cost.step_seconds, none.cost.step_seconds * (ratio or 0.0))


def _by_costs(way: Way, none: Way) -> str:
    """Return the change of the step time by costs: `+22 %`, or with its error, rounded up, `+22 ±3 %`."""
    change, reference = _change(way.cost.step_seconds, none.cost.step_seconds), none.cost.step_seconds
    error = way.cost.error_seconds / reference * 100 if reference else 0.0
    return f"{change.removesuffix('%')}±{ceil(error)} %" if error else change


def _cut(table: Table) -> Table:
    """Return a table that may be cut before COSTS_OFF or the first text column after the names."""
    columns = table.columns
    begins = (at for at, column in enumerate(columns) if at and (not column.is_number or column.head == COSTS_OFF))
    cut = next(begins, None)
    return msgspec.structs.replace(table, cuts=(1, cut) if cut else (1,))


def _change(value: float, reference: float) -> str:
    return change_text(value / reference if reference else None)


def _seen(rows: Sequence[Row | None]) -> list[int | None]:
    return [row.readings.peak_bytes if row and row.outcome == "ok" else None for row in rows]


def _peak_texts(rows: Sequence[Row | None], costs: Sequence[int]) -> list[str]:
    """Return the peaks in the unit of the costs, or what came of a row instead."""
    texts = bytes_texts(_seen(rows), *costs)
    bad = [row.outcome.replace("_", " ") if row and row.outcome != "ok" else "" for row in rows]
    return [outcome or text for outcome, text in zip(bad, texts, strict=True)]


def _line(line: ComparedPlan) -> dict[str, Any]:
    measured, predicted, cost = line.measured, line.predicted, line.way.cost
    kind, peak_bytes = (measured.evidence, measured.readings.peak_bytes) if measured else (None, None)
    found = ("time_ratio", "time_ratio_range", "gradients", "outcome")
    ratio, ratios, gradients, outcome = (getattr(measured, name) if measured else None for name in found)
    return {
        "way": line.way.label, "same": line.way.same, "plan": render(line.way.plan), "peak_bytes": cost.peak_bytes,
        "step_seconds": cost.step_seconds, "error_seconds": cost.error_seconds,
        "predicted_peak_bytes": predicted.readings.peak_bytes if predicted else None, "evidence": kind,
        "measured_peak_bytes": peak_bytes if kind == "measured" else None,
        "rehearsed_peak_bytes": peak_bytes if kind == "rehearsed" else None,
        "measured_time_ratio": ratio, "measured_time_ratio_range": ratios, "gradients": gradients,
        "outcome": outcome, "chosen": line.is_chosen,
    }  # fmt: skip


def stages(chain: Chain, *, title: str) -> Table:
    """Return one line per stage: its memory and its times."""
    listed = chain.stages
    counts = {head: [getattr(stage, name) for stage in listed] for head, name in STAGE_BYTES.items()}
    size, unit = byte_unit(count for column in counts.values() for count in column)
    taken = {name: [getattr(stage, f"{name}_seconds") for stage in listed] for name in ("forward", "backward")}
    ticks, second = second_unit(together.from_iterable(taken.values()))

    def options(stage: Stage) -> str:
        named = [f"{option.name} {scaled(option.saved_bytes, size)} {unit}" for option in stage.options]
        return "always kept" if stage.pinned else ", ".join(named) or "checkpointed"

    columns = (
        words("stage", "", [stage.name for stage in listed]),
        *byte_columns(counts),
        *(numbers(name, second, [scaled(seconds, ticks) for seconds in times]) for name, times in taken.items()),
        words("can also be", "", map(options, listed)),
    )
    return _cut(Table(title=title, columns=columns))
