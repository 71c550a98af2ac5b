"""What makes a step fit a memory: a row for each way of a model or of a user's command, or how far each way reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiler.analysis.advice import Rung
from profiler.analysis.rows import Row
from profiler.core.case import Case, encode_indented
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import files_of_labels, strategy_labels
from profiler.core.units import MISSING, bytes_text, change_text, seconds_text
from profiler.scripts.report import Variant, phase_name
from profiler.views.tables import columns
from profiler.views.tables.grid import Column, Table, byte_columns, numbers, telling, words
from profiler.views.tables.script import seconds_of_step, what_was_done

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
    names: dict[str, list[str]] = {}
    for lever, why in reasons.items():
        names.setdefault(why, []).append(str(lever))
    return [f"left out: {', '.join(levers)}: {why}" for why, levers in names.items()]


def table(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None,
    places: Mapping[Case, str], below: Sequence[str],
) -> Table:  # fmt: skip
    """Return a row for each way of a model, with the bytes that it needs, whether it fits and where its peak is."""
    peaks = [(row.readings.peak_bytes, row.readings.reserved_bytes) for row in rows]
    known = "estimated" if rows[0].case.has_estimated_times else rows[0].evidence
    changes = ["baseline" if row is rows[0] else columns.time_change(row) for row in rows]
    said = [FITS if row is chosen else "fits" if does else "" for row, does in zip(rows, fits, strict=True)]
    shown = (
        words("strategy and levers", "", strategy_labels(row.case.label for row in rows)),
        *_bytes(peaks, needed),
        *telling([numbers("time", known, changes), words("gradients", "", [row.gradients for row in rows])]),
        words("", "", said),
        words("peak in", "", [places.get(row.case, row.readings.peak_phase or MISSING) for row in rows]),
    )
    return Table(
        title=columns.heading(rows), columns=shown, cuts=(1, len(shown) - 1), below=(*columns.below(rows), *below)
    )


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
        below=(*done, *below),
    )


def _bytes(peaks: Sequence[tuple[int | None, int | None]], needed: Sequence[int | None]) -> tuple[Column, ...]:
    """Return the columns of what each way has at its peak, reserves and needs, in one unit."""
    peak, reserved = zip(*peaks, strict=True)
    return telling(byte_columns({"peak": peak, "reserved": reserved, "needed": needed}))


def document(
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
            numbers("step", kind, [seconds_text(rung.row.step_seconds if rung.row else None) for rung in rungs]),
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
