"""A plan beside those that a user would pick, whole frontiers, and what makes a step fit: as tables and documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as together
from math import ceil
from typing import Any

import msgspec

from profiler.analysis.advice import Rung
from profiler.analysis.rows import Row
from profiler.core import by_key, units
from profiler.core.case import Case, encode_indented
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import files_of_labels, strategy_labels
from profiler.core.units import MISSING, bytes_text, bytes_texts, change_text, scaled
from profiler.planning.chain import Chain, Plan, Stage, render
from profiler.planning.chain import words as words_of
from profiler.planning.simulator import Way
from profiler.planning.solver import Point
from profiler.scripts.report import Variant, phase_name
from profiler.views.export import csv_text
from profiler.views.tables import Column, Table, byte_columns, numbers, telling, words
from profiler.views.tables.columns import NOISE, UNSURE, heading, lines_below, ratio_text, time_change
from profiler.views.tables.script import seconds_of_step, what_was_done

COSTS_OFF = ("costs", "off by")
STAGE_BYTES = {
    "output": "output_bytes",
    "saved": "saved_bytes",
    "backward extra": "backward_extra_bytes",
    "gradients": "gradient_bytes",
}
MARK = "*"  # of the plan that is chosen
MERGED = "where a cut saves nothing, blocks are one stage: `all` is every stage here, not every block"
NOTATION = {  # a part of a plan's text, and what is explained if it is there
    r"\[[^\]]+[- ][^\]]+\]": "[2-3] is one checkpoint",
    r"\]\.\.\[": "[4]..[6] are checkpointed each by itself",
    r"[^]:]:(?!host)\w": "4:matmul keeps the results of its matmul",
    ":host": "[2-3]:host has its input in host memory",
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
    notation = [meaning for part, meaning in NOTATION.items() if re.search(part, text)]
    lines = [f"a plan names what is recomputed: {', '.join(notation)}"] if notation else []
    return lines if all(len(stage.blocks) < 2 for stage in chain.stages) else [*lines, MERGED]


def document(
    *, model: str | None, budget_bytes: int | None, none: Way, points: Sequence[Point], lines: Sequence[ComparedPlan],
    facts: Mapping[str, Any],
) -> bytes:  # fmt: skip
    """Return one JSON document, one field per line."""

    def costs(cost: Any) -> dict[str, Any]:
        return {"peak_bytes": cost.peak_bytes, "step_seconds": cost.step_seconds}

    ways = []
    found = ("time_ratio", "time_ratio_range", "gradients", "outcome")
    for line in lines:
        measured, predicted, cost = line.measured, line.predicted, line.way.cost
        kind, peak_bytes = (measured.evidence, measured.readings.peak_bytes) if measured else (None, None)
        ratio, ratios, gradients, outcome = (getattr(measured, name, None) for name in found)
        way = {
            "way": line.way.label, "same": line.way.same, "plan": render(line.way.plan), "peak_bytes": cost.peak_bytes,
            "step_seconds": cost.step_seconds, "error_seconds": cost.error_seconds,
            "predicted_peak_bytes": predicted.readings.peak_bytes if predicted else None, "evidence": kind,
            "measured_peak_bytes": peak_bytes if kind == "measured" else None,
            "rehearsed_peak_bytes": peak_bytes if kind == "rehearsed" else None,
            "measured_time_ratio": ratio, "measured_time_ratio_range": ratios, "gradients": gradients,
            "outcome": outcome, "chosen": line.is_chosen,
        }  # fmt: skip
        ways.append(way)
    fields = {
        "schema": 1,
        "model": model,
        "budget_bytes": budget_bytes,
        "uncheckpointed": costs(none.cost),
        **facts,
        "ways": ways,
        "frontier": [{**costs(point), "plan": render(point.plan)} for point in points],
    }
    return encode_indented(fields)


def table(lines: Sequence[ComparedPlan], chain: Chain, *, title: str, none: Way, below: Sequence[str] = ()) -> Table:
    """Return a line per plan: its costs, what was predicted or measured, and the plan as text.

    Overheads are relative to the step without checkpointing, `none`.
    """
    mark = any(line.is_chosen for line in lines)
    names = [f"{MARK if line.is_chosen else ' '} {line.way.label}" if mark else line.way.label for line in lines]
    rows, costs = [line.measured for line in lines], [line.way.cost.peak_bytes for line in lines]
    kinds = sorted({row.evidence for row in rows if row})
    known = rows if kinds else [line.predicted for line in lines]
    peaks, times = [], []
    if any(known):
        bad = [row.outcome.replace("_", " ") if row and row.outcome != "ok" else "" for row in known]
        texts = [outcome or text for outcome, text in zip(bad, bytes_texts(_seen(known), *costs), strict=True)]
        peaks = [numbers("peak", ", ".join(kinds) or "predicted", texts)]
    if kinds not in ([], ["rehearsed"]):
        errors = [units.error_text(row.prediction_error if row else None) for row in rows]
        peaks.append(numbers("predicted", "off by", errors))
        seconds = [none.cost.step_seconds * ((row and row.time_ratio) or 0.0) for row in rows]  # as was measured
        off = [_change(line.way.cost.step_seconds, one) for line, one in zip(lines, seconds, strict=True)]
        ratios = [ratio_text(row) if row and row.time else MISSING for row in rows]
        ranges = []
        for time in (row.time if row else None for row in rows):
            known_range = units.change_range_text(time.interval if time else None)
            ranges.append("too noisy" if time and time.interval and time.is_noisy else known_range)
        times = [
            numbers("time", "measured", [UNSURE if ratio == NOISE else ratio for ratio in ratios]),  # the range says so
            numbers("range", "measured", ranges),
            numbers(*COSTS_OFF, off),
            words("gradients", "", [row.gradients if row else MISSING for row in rows]),
        ]
    changes = []  # of the step time by costs: `+22 %`, or with its error, rounded up, `+22 ±3 %`
    for line in lines:
        cost, reference = line.way.cost, none.cost.step_seconds
        change = _change(cost.step_seconds, reference)
        error = cost.error_seconds / reference * 100 if reference else 0.0
        changes.append(f"{change.removesuffix('%')}±{ceil(error)} %" if error else change)
    columns = (
        words("way", "", names, ["bold" if line.is_chosen else "" for line in lines]),
        numbers("peak", "by costs", bytes_texts(costs, *_seen(rows))),
        *peaks,
        numbers("time", "by costs", changes),
        *times,
        words("plan", "", [words_of(chain, line.way.plan) for line in lines]),
    )
    return _cut(Table(title=title, columns=columns, below=tuple(below)))


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


def stages(chain: Chain, *, title: str) -> Table:
    """Return one line per stage: its memory and its times."""
    listed = chain.stages
    counts = {head: [getattr(stage, name) for stage in listed] for head, name in STAGE_BYTES.items()}
    size, unit = units.byte_unit(count for column in counts.values() for count in column)
    taken = {name: [getattr(stage, f"{name}_seconds") for stage in listed] for name in ("forward", "backward")}
    ticks, second = units.second_unit(together.from_iterable(taken.values()))

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


FITS = "<- fits"
SCHEMA = 1


def context_text(context_bytes: int, source: str) -> str:
    """Says what CUDA takes of the memory besides tensors; `source` is assumed, measured or as asked."""
    hint = "; --context SIZE says otherwise" if source == "assumed" else ""
    return f"of that CUDA itself takes {bytes_text(context_bytes)}, {source}{hint}"


def need_text(variant: Variant) -> str:
    """Return where the memory that decides is reserved, in words: the phase, its line and what CUDA itself takes."""
    phase = variant.largest.most_reserved
    at = f" ({phase.line})" if phase.line else ""
    context = f", and {bytes_text(variant.context_bytes)} for CUDA itself" if variant.context_bytes else ""
    return f"{bytes_text(phase.reserved_bytes or 0)} are reserved in {phase_name(phase)}{at}{context}"


def left_out_lines(reasons: Mapping[Any, str]) -> list[str]:
    """Return why levers were left out, a line for each reason."""
    names = by_key((why, str(lever)) for lever, why in reasons.items())
    return [f"left out: {', '.join(levers)}: {why}" for why, levers in names.items()]


def fit_table(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None,
    places: Mapping[Case, str], below: Sequence[str],
) -> Table:  # fmt: skip
    """Return a row for each way of a model, with the bytes that it needs, whether it fits and where its peak is."""
    peaks = [(row.readings.peak_bytes, row.readings.reserved_bytes) for row in rows]
    known = "estimated" if rows[0].case.has_estimated_times else rows[0].evidence
    changes = ["baseline" if row is rows[0] else time_change(row) for row in rows]
    said = [FITS if row is chosen else "fits" if does else "" for row, does in zip(rows, fits, strict=True)]
    shown = (
        words("strategy and levers", "", strategy_labels(row.case.label for row in rows)),
        *_bytes(peaks, needed),
        *telling([numbers("time", known, changes), words("gradients", "", [row.gradients for row in rows])]),
        words("", "", said),
        words("peak in", "", [places.get(row.case, row.readings.peak_phase or MISSING) for row in rows]),
    )
    return Table(title=heading(rows), columns=shown, cuts=(1, len(shown) - 1), below=(*lines_below(rows), *below))


def script_table(
    ways: Sequence[tuple[str, Variant, int | None]], *, chosen: int | None, limit_bytes: int, below: Sequence[str]
) -> Table:
    """Return a row for each label, the command under it and what it needs; the command as it is comes first."""
    largest = [variant.largest for _, variant, _ in ways]
    needed = [needed for _, _, needed in ways]
    fits = [count is not None and count <= limit_bytes for count in needed]
    seconds = [seconds_of_step(variant) for _, variant, _ in ways]
    changes = ["baseline", *(change_text(one / seconds[0] if one and seconds[0] else None) for one in seconds[1:])]
    done = {
        f"{label}: {applied.module}, {what_was_done(applied)}": None
        for label, variant, _ in ways
        for process in variant.processes
        for applied in process.applied
        if applied.strategy != "none" and applied.why is None
    }
    untimed = [(variant.estimate_why, label) for label, variant, _ in ways if variant.estimate_why]
    notes = [f"note: no time of {', '.join(labels)}: {why}" for why, labels in by_key(untimed).items()]
    return Table(
        columns=(
            words("way", "", [label for label, _, _ in ways]),
            words("", "", [FITS if at == chosen else "fits" if does else "" for at, does in enumerate(fits)]),
            *_bytes([(process.peak_bytes, process.reserved_bytes) for process in largest], needed),
            *([numbers("step", "estimated", changes)] if any(seconds[1:]) else []),
            words("peak in", "", [phase_name(process.peak) for process in largest]),
            words("line", "", [process.peak.line for process in largest]),
        ),
        cuts=(2,),
        below=(*done, *below, *notes),
    )


def _bytes(peaks: Sequence[tuple[int | None, int | None]], needed: Sequence[int | None]) -> tuple[Column, ...]:
    """Return the columns of what each way has at its peak, reserves and needs, in one unit."""
    peak, reserved = zip(*peaks, strict=True)
    return telling(byte_columns({"peak": peak, "reserved": reserved, "needed": needed}))


def fit_document(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None, limit: int,
    context_bytes: int, left_out: dict[str, str], floors: dict[str, int],
) -> bytes:  # fmt: skip
    """Return the ways of a model as one JSON document, one field per line."""
    ways = [
        {
            "way": row.case.label, "outcome": row.outcome, "peak_bytes": row.readings.peak_bytes,
            "reserved_bytes": row.readings.reserved_bytes, "needed_bytes": nbytes, "time_ratio": row.time_ratio,
            "time_ratio_range": row.time_ratio_range, "gradients": row.gradients, "evidence": row.evidence,
            "fits": does, "is_chosen": row is chosen,
        }
        for row, nbytes, does in zip(rows, needed, fits, strict=True)
    ]  # fmt: skip
    fields = {
        "schema": SCHEMA, "model": rows[0].case.model, "memory_bytes": limit, "context_bytes": context_bytes,
        "ways": ways, "left_out": left_out, "floors": floors,
    }  # fmt: skip
    return encode_indented(fields)


# ---- how far each rung reaches: its largest batch, or the smallest GPU that holds its step


def sizes_table(
    rungs: Sequence[Rung], *, of_batches: bool, chosen: Rung | None, title: str, below: Sequence[str]
) -> Table:
    """Return a line for each rung, with one sample more or the next smaller GPU; why nothing fits is below."""
    labels = strategy_labels([rung.label for rung in rungs])
    needed = numbers(
        "needed",
        ", ".join(sorted({rung.row.evidence for rung in rungs if rung.row})),
        [bytes_text(rung.needed_bytes(rung.row)) for rung in rungs],
    )
    kind = "estimated" if any(rung.place.case.has_estimated_times for rung in rungs) else "measured"
    if of_batches:
        rates = [rung.samples_per_second for rung in rungs]
        changes = [change_text(rate / rates[0] if rate and rates[0] else None) for rate in rates]
        shown = [
            numbers("largest", "batch", [f"{rung.reach:,}" if rung.reach else "none" for rung in rungs]),
            needed,
            words("one sample", "more", map(_beyond, rungs)),
            numbers("samples/s", kind, [MISSING if rate is None else f"{rate:,.1f}" for rate in rates]),
            numbers("against", "none", changes),
        ]
    else:
        gpus = [parse(rung.place.case.device).name if rung.reach else "none" for rung in rungs]
        shown = [
            words("smallest", "GPU", gpus),
            numbers("its", "memory", [bytes_text(rung.place.limit if rung.reach else None) for rung in rungs]),
            needed,
            words("next smaller", "", map(_beyond, rungs)),
            numbers("step", kind, [units.seconds_text(rung.row.step_seconds if rung.row else None) for rung in rungs]),
        ]
    mark = words("", "", [FITS if rung is chosen else "" for rung in rungs])
    reasons = [f"{label}: {_why(rung)}" for label, rung in zip(labels, rungs, strict=True) if not rung.reach]
    return Table(
        title=title,
        columns=telling([words("strategy", "", labels), *shown, mark]),
        below=(*reasons, *files_of_labels(rung.label for rung in rungs), *below),
    )


def _beyond(rung: Rung) -> str:
    if rung.further is None or rung.beyond is None:
        return MISSING
    gpu = parse(rung.beyond.case.device).name
    where = "" if gpu == parse(rung.place.case.device).name else f"{gpu}: "
    needed = rung.needed_bytes(rung.further)
    if needed is None:
        return where + rung.further.outcome.replace("_", " ")
    return f"{where}{bytes_text(needed)}: {'fits too' if needed <= rung.beyond.limit else 'does not fit'}"


def _why(rung: Rung) -> str:
    """Return why the step fits nowhere."""
    needed = rung.needed_bytes(rung.row)
    if needed is None:
        return (rung.row and rung.row.detail) or "it was not run"
    where = "not even one sample fits" if rung.place.case.batch_size == 1 else "no GPU holds it"
    return f"{where}: it needs {bytes_text(needed)}"


def sizes_document(
    rungs: Sequence[Rung], *, model: str, of_batches: bool, chosen: Rung | None, left_out: dict[str, str]
) -> bytes:
    """Return the rungs as one JSON document, one field per line."""
    ways = [
        {
            "way": rung.label, "fits": rung.reach > 0, "is_chosen": rung is chosen,
            "batch_size": rung.reach if of_batches else rung.place.case.batch_size,
            "device": parse(rung.place.case.device).name, "memory_bytes": rung.place.limit,
            "outcome": rung.row and rung.row.outcome, "evidence": rung.row and rung.row.evidence,
            "needed_bytes": rung.needed_bytes(rung.row),
            "beyond_device": rung.beyond and parse(rung.beyond.case.device).name,
            "beyond_outcome": rung.further and rung.further.outcome,
            "beyond_bytes": rung.needed_bytes(rung.further),
            "step_seconds": rung.row and rung.row.step_seconds, "samples_per_second": rung.samples_per_second,
            "has_estimated_times": rung.place.case.has_estimated_times,
        }
        for rung in rungs
    ]  # fmt: skip
    context_bytes = rungs[0].place.context_bytes
    fields = {"schema": SCHEMA, "model": model, "context_bytes": context_bytes, "ways": ways, "left_out": left_out}
    return encode_indented(fields)
