"""A plan beside the plans that a user would pick, and whole frontiers, as tables and documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Any

import msgspec

from profiler.analysis.rows import Row
from profiler.core.case import encode_indented
from profiler.core.units import (
    MISSING,
    bytes_text,
    change_range_text,
    change_text,
    error_text,
    seconds_text,
)
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.plan import Plan, render
from profiler.planning.solver import Point
from profiler.views.export.csv import csv_text
from profiler.views.tables.columns import NOISE, UNSURE, ratio_text
from profiler.views.tables.grid import Column, Table, numbers, words

COSTS_OFF = ("costs", "off by")
MARK = "*"  # of the plan that is chosen
MERGED = "; where a cut saves nothing, blocks are one stage: `all` is every stage here, not every block"
SHORTENED = 3  # so many single stages in a row are shortened to the first and the last
READING = {  # notation of plans -> its explanation, shown if a plan has it
    "[": "[2-3] is one checkpointed segment",
    "]..[": "[4]..[6] are checkpointed each by itself",
    ":": "4:matmul is recomputed except the outputs of matmul",
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


def table(lines: Sequence[ComparedPlan], *, title: str, none: Way, below: Sequence[str] = ()) -> Table:
    """Return a line per plan; overheads are relative to the step without checkpointing, `none`."""
    return _cut(Table(title=title, columns=way_columns(lines, none), below=tuple(below)))


def frontier(points: Sequence[Point], none: Way, *, title: str) -> Table:
    """Return a line for each plan of the frontier, the smallest peak first."""
    columns = (
        numbers("peak", "by costs", [bytes_text(point.peak_bytes) for point in points]),
        numbers("peak", "against none", [_change(point.peak_bytes, none.cost.peak_bytes) for point in points]),
        numbers("time", "against none", [_change(point.step_seconds, none.cost.step_seconds) for point in points]),
        words("plan", "", [plan_text(point.plan) for point in points]),
    )
    return _cut(Table(title=title, columns=columns))


def csv(points: Sequence[Point]) -> bytes:
    """Return the frontier as CSV: bytes, seconds, plan."""
    lines = [(point.peak_bytes, repr(point.step_seconds), render(point.plan)) for point in points]
    return csv_text([("peak_bytes", "step_seconds", "plan"), *lines]).encode()


def reading(plans: Iterable[Plan]) -> list[str]:
    """Return how to read the notation of these plans, in a line; nothing if it needs no explanation."""
    notation = " ".join(map(plan_text, plans))
    said = [meaning for part, meaning in READING.items() if part in notation]
    return [f"in plans, {'; '.join(said)}"] if said else []


def legend(chain: Chain) -> str:
    """Return which stage is what: `stages: 1 before blocks.0, 2-7 blocks.0 to blocks.5, 8 after blocks.5`."""
    spans = []
    for is_pinned, group in groupby(enumerate(chain.stages, start=1), key=lambda numbered: numbered[1].pinned):
        run = list(group)
        (first, first_stage), (last, last_stage) = run[0], run[-1]
        if is_pinned or first == last:
            spans += [f"{number} {stage.name}" for number, stage in run]
        else:
            spans.append(f"{first}-{last} {first_stage.name} to {last_stage.name}")
    is_cut = all(len(stage.blocks) < 2 for stage in chain.stages)
    return f"stages: {', '.join(spans)}" + ("" if is_cut else MERGED)


def same_plans(lines: Sequence[ComparedPlan]) -> list[str]:
    """Return a sentence for each plan that has several names."""
    return [f"{line.way.name}: one plan" for line in lines if line.way.same]


def document(
    *,
    model: str | None,
    budget_bytes: int | None,
    none: Way,
    points: Sequence[Point],
    lines: Sequence[ComparedPlan],
    facts: Mapping[str, Any],
) -> bytes:
    """Return one JSON document, one field per line."""
    fields = {
        "schema": 1,
        "model": model,
        "budget_bytes": budget_bytes,
        "uncheckpointed": {"peak_bytes": none.cost.peak_bytes, "step_seconds": none.cost.step_seconds},
        **facts,
        "ways": [_line(line) for line in lines],
        "frontier": [
            {"peak_bytes": point.peak_bytes, "step_seconds": point.step_seconds, "plan": render(point.plan)}
            for point in points
        ],
    }
    return encode_indented(fields)


def way_columns(lines: Sequence[ComparedPlan], none: Way) -> tuple[Column, ...]:
    """Return the columns of these plans: their costs, what was predicted or measured, and the plans as text."""
    mark = any(line.is_chosen for line in lines)
    names = [f"{MARK if line.is_chosen else ' '} {line.way.label}" if mark else line.way.label for line in lines]
    rows = [line.measured for line in lines]
    peaks = _peaks(rows)
    if any(line.predicted for line in lines) and not peaks:
        peaks = [numbers("peak", "predicted", [_peak(line.predicted) for line in lines])]
    is_timed = any(row and row.evidence != "rehearsed" for row in rows)
    return (
        words("way", "", names, ["bold" if line.is_chosen else "" for line in lines]),
        numbers("peak", "by costs", [bytes_text(line.way.cost.peak_bytes) for line in lines]),
        *peaks,
        numbers("time", "by costs", [_by_costs(line.way, none) for line in lines]),
        *(_times(lines, none) if is_timed else []),
        words("plan", "", [plan_text(line.way.plan) for line in lines]),
    )


def _peaks(rows: Sequence[Row | None]) -> list[Column]:
    """Return the columns of the peaks, and of the prediction errors where they were measured."""
    kinds = sorted({row.evidence for row in rows if row})
    if not kinds:
        return []
    errors = [error_text(row.prediction_error if row else None) for row in rows]
    return [
        numbers("peak", ", ".join(kinds), [_peak(row) for row in rows]),
        *([numbers("predicted", "off by", errors)] if kinds != ["rehearsed"] else []),
    ]


def _times(lines: Sequence[ComparedPlan], none: Way) -> list[Column]:
    """Return the columns of measured times, their intervals, the errors of the costs, and the gradients."""
    rows = [line.measured for line in lines]
    return [
        numbers("time", "measured", [_time_change(row) for row in rows]),
        numbers("range", "measured", [_range(row) for row in rows]),
        numbers(*COSTS_OFF, [_cost_error(line, none) for line in lines]),
        words("gradients", "", [row.gradients if row else MISSING for row in rows]),
    ]


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
    reference = none.cost.step_seconds
    return change_text(line.way.cost.step_seconds / reference / ratio if ratio and reference else None)


def _by_costs(way: Way, none: Way) -> str:
    """Return the change of the step time by costs: `+22 %`, or with its error, rounded up, `+22 ±3 %`."""
    change, reference = _change(way.cost.step_seconds, none.cost.step_seconds), none.cost.step_seconds
    error = way.cost.error_seconds / reference * 100 if reference else 0.0
    return f"{change.removesuffix('%')}±{ceil(error)} %" if error else change


def plan_text(plan: Plan) -> str:
    """Return the plan as text, with `[2]..[7]` for stages that are checkpointed each by itself."""
    words_: list[str] = []
    run: list[str] = []
    for word in [*render(plan).split(" "), ""]:
        if re.fullmatch(r"\[\d+\]", word, re.ASCII):
            run.append(word)
            continue
        words_ += run if len(run) < SHORTENED else [f"{run[0]}..{run[-1]}"]
        run = []
        words_.append(word)
    return " ".join(words_).strip()


def _cut(table: Table) -> Table:
    """Return a table that may be cut before COSTS_OFF or the first text column after the names."""
    columns = table.columns
    begins = (at for at, column in enumerate(columns) if at and (not column.is_number or column.head == COSTS_OFF))
    cut = next(begins, None)
    return msgspec.structs.replace(table, cuts=(1, cut) if cut else (1,))


def _change(value: float, reference: float) -> str:
    return change_text(value / reference if reference else None)


def _peak(row: Row | None) -> str:
    if row is None or row.outcome != "ok":
        return MISSING if row is None else row.outcome.replace("_", " ")
    return bytes_text(row.readings.peak_bytes)


def _line(line: ComparedPlan) -> dict[str, Any]:
    measured, predicted = line.measured, line.predicted
    kind, peak_bytes = (measured.evidence, measured.readings.peak_bytes) if measured else (None, None)
    return {
        "way": line.way.label,
        "same": line.way.same,
        "plan": render(line.way.plan),
        "peak_bytes": line.way.cost.peak_bytes,
        "step_seconds": line.way.cost.step_seconds,
        "error_seconds": line.way.cost.error_seconds,
        "predicted_peak_bytes": predicted.readings.peak_bytes if predicted else None,
        "evidence": kind,
        "measured_peak_bytes": peak_bytes if kind == "measured" else None,
        "rehearsed_peak_bytes": peak_bytes if kind == "rehearsed" else None,
        "measured_time_ratio": measured.time_ratio if measured else None,
        "measured_time_ratio_range": measured.time_ratio_range if measured else None,
        "gradients": measured.gradients if measured else None,
        "outcome": measured.outcome if measured else None,
        "chosen": line.is_chosen,
    }


def stages(chain: Chain, *, title: str) -> Table:
    """Return one line per stage: its memory and its times."""
    listed = chain.stages
    columns = (
        words("stage", "", [f"{number} {stage.name}" for number, stage in enumerate(listed, start=1)]),
        numbers("output", "", [bytes_text(stage.output_bytes) for stage in listed]),
        numbers("saved", "", [bytes_text(stage.saved_bytes) for stage in listed]),
        numbers("backward", "besides", [bytes_text(stage.backward_extra_bytes) for stage in listed]),
        numbers("gradients", "", [bytes_text(stage.gradient_bytes) for stage in listed]),
        numbers("forward", "", [seconds_text(stage.forward_seconds) for stage in listed]),
        numbers("backward", "", [seconds_text(stage.backward_seconds) for stage in listed]),
        words("can also be", "", [_options(stage) for stage in listed]),
    )
    return _cut(Table(title=title, columns=columns))


def _options(stage: Any) -> str:
    if stage.pinned:
        return "always kept"
    return ", ".join(f"{option.name} {bytes_text(option.saved_bytes)}" for option in stage.options) or "checkpointed"
