"""What fits a memory, as tables: the largest batch of each strategy, and the devices that hold a step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.memory_fit import Fit
from profiler.core.case import encode_indented
from profiler.core.record import Evidence, evidence
from profiler.core.units import MISSING, bytes_text, change_text
from profiler.views.tables.columns import batch
from profiler.views.tables.grid import Column, Table, numbers, telling, words

NOTE = (
    "needed: what the allocator reserves, and 600 MiB for CUDA itself; "
    "of the strategies that fit, the one that recomputes least"
)


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch of one strategy. Bytes are of the device's memory."""

    strategy: str
    batch_size: int  # 0: none fits
    predicted_bytes: int | None
    measured_bytes: int | None  # None where it was not measured, or did not fit
    rehearsed_bytes: int | None = None
    outcome: str | None
    beyond_bytes: int | None  # with one sample more
    beyond_outcome: str | None
    samples_per_second: float | None
    evidence: Evidence | None = None  # of the outcomes
    sample_bytes: int | None = None  # if none fits: what one sample needs
    static_bytes: int | None = None  # and the part of it that depends on neither batch nor strategy


def context_text(context_bytes: int, source: str) -> str:
    """Says what CUDA takes of the memory besides tensors; `source` is assumed, measured or as asked."""
    hint = "; --context SIZE says otherwise" if source == "assumed" else ""
    return f"of that CUDA itself takes {bytes_text(context_bytes)}, {source}{hint}"


def why_none(strategy: str, sample_bytes: int, static_bytes: int, context_bytes: int) -> str:
    """Says why not even one sample fits: what it needs, and the parts of that."""
    work = max(0, sample_bytes - static_bytes - context_bytes)
    parts = [f"{bytes_text(static_bytes)} static", f"{bytes_text(work)} at work"]
    parts += [f"{bytes_text(context_bytes)} for CUDA itself"] if context_bytes else []
    return f"{strategy}: not even one sample fits; it needs {bytes_text(sample_bytes)}: {', '.join(parts)}"


def table(lines: Sequence[LargestBatch], *, title: str, limit: int, context_bytes: int = 0) -> Table:
    """Return a line for each strategy, and why none fits; samples a second are compared with those of `none`."""
    columns = [
        words("strategy", "", [largest.strategy for largest in lines]),
        numbers("largest", "batch", [f"{largest.batch_size:,}" if largest.batch_size else "none" for largest in lines]),
        numbers("memory", "predicted", [bytes_text(largest.predicted_bytes) for largest in lines]),
    ]
    if any(largest.outcome for largest in lines):
        kinds = sorted({largest.evidence or "measured" for largest in lines if largest.outcome})
        columns += [
            numbers("memory", ", ".join(kinds), [_memory(largest) for largest in lines]),
            words("one sample", "more", [_beyond(largest, limit) for largest in lines]),
            *([] if kinds == ["rehearsed"] else _rates(lines)),
        ]
    reasons = tuple(
        why_none(largest.strategy, largest.sample_bytes, largest.static_bytes or 0, context_bytes)
        for largest in lines
        if largest.sample_bytes is not None
    )
    return Table(title=title, columns=telling(columns), below=reasons)


def _rates(lines: Sequence[LargestBatch]) -> list[Column]:
    """Return the columns of samples per second, which a rehearsal does not have."""
    rates = [largest.samples_per_second for largest in lines]
    none = next((largest.samples_per_second for largest in lines if largest.strategy == "none"), None)
    return [
        numbers("samples", "a second", [MISSING if rate is None else f"{rate:,.1f}" for rate in rates]),
        numbers("against", "none", [change_text(rate / none if rate and none else None) for rate in rates]),
    ]


def document(lines: Sequence[LargestBatch], *, model: str, limit: int, context_bytes: int) -> bytes:
    """Return one JSON document, one field per line."""
    fields = {
        "schema": 1, "model": model, "memory_bytes": limit, "context_bytes": context_bytes, "strategies": lines,
    }  # fmt: skip
    return encode_indented(fields)


def _memory(largest: LargestBatch) -> str:
    if largest.outcome not in (None, "ok"):
        return largest.outcome.replace("_", " ")
    return bytes_text(largest.rehearsed_bytes if largest.evidence == "rehearsed" else largest.measured_bytes)


def _beyond(largest: LargestBatch, limit: int) -> str:
    if largest.beyond_outcome is None:
        return MISSING
    if largest.beyond_bytes is None:
        return largest.beyond_outcome.replace("_", " ")
    return f"{bytes_text(largest.beyond_bytes)}: {'fits too' if largest.beyond_bytes <= limit else 'does not fit'}"


def fit_tables(all_fits: Sequence[Fit]) -> list[Table]:
    """Return a table per case: one line per device, with the strategy that recomputes least of those that fit."""
    tables = []
    for case in dict.fromkeys(fit.case for fit in all_fits):
        ranks = f", one of {case.ranks} ranks, {case.parallel}" if case.ranks else ""
        head = f"{case.model}, {batch(case)}, {case.optimizer}, {case.precision}{ranks}"
        columns = _fit_columns([fit for fit in all_fits if fit.case == case])
        tables.append(Table(title=f"{head}: {evidence(case, None)}, not measured", columns=columns))
    return [*tables, Table(above=(NOTE,))]


def _fit_columns(case_fits: Sequence[Fit]) -> tuple[Column, ...]:
    return (
        words("device", "", [fit.device for fit in case_fits]),
        numbers("memory", "", [bytes_text(fit.memory_bytes) for fit in case_fits]),
        words("holds it", "", [fit.strategy or "with no strategy here" for fit in case_fits]),
        numbers("needed", "", [bytes_text(fit.needed_bytes) for fit in case_fits]),
        numbers(
            "FLOPs",
            "against none",
            [change_text(None if fit.extra_flops is None else 1 + fit.extra_flops) for fit in case_fits],
        ),
    )
