"""How far each rung of `gcprof fit` reaches: its largest batch, or the smallest GPU that holds its step."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.analysis.memory_fit import Rung
from profiler.core.case import encode_indented
from profiler.core.devices import parse
from profiler.core.plan_file import files_of_labels, strategy_labels
from profiler.core.units import MISSING, bytes_text, change_text, seconds_text
from profiler.views.tables.fit import FITS
from profiler.views.tables.grid import Column, Table, numbers, telling, words


def context_text(context_bytes: int, source: str) -> str:
    """Says what CUDA takes of the memory besides tensors; `source` is assumed, measured or as asked."""
    hint = "; --context SIZE says otherwise" if source == "assumed" else ""
    return f"of that CUDA itself takes {bytes_text(context_bytes)}, {source}{hint}"


def table(rungs: Sequence[Rung], *, of_batches: bool, chosen: Rung | None, title: str, below: Sequence[str]) -> Table:
    """Return a line for each rung, with one sample more or the next smaller GPU; why nothing fits is below."""
    kinds = ", ".join(sorted({rung.evidence for rung in rungs if rung.evidence}))
    labels = strategy_labels([rung.label for rung in rungs])
    columns = [
        words("strategy", "", labels),
        *(_batches(rungs) if of_batches else _gpus(rungs)),
        numbers("needed", kinds, [bytes_text(rung.needed_bytes(rung.record)) for rung in rungs]),
        words(*(("one sample", "more") if of_batches else ("next smaller", "")), map(_beyond, rungs)),
        *_times(rungs, of_batches=of_batches),
        words("", "", [FITS if rung is chosen else "" for rung in rungs]),
    ]
    reasons = [f"{label}: {_why(rung)}" for label, rung in zip(labels, rungs, strict=True) if not rung.reach]
    files = files_of_labels(rung.label for rung in rungs)
    return Table(title=title, columns=telling(columns), below=(*reasons, *files, *below), cuts=(1,))


def _batches(rungs: Sequence[Rung]) -> list[Column]:
    return [numbers("largest", "batch", [f"{rung.reach:,}" if rung.reach else "none" for rung in rungs])]


def _gpus(rungs: Sequence[Rung]) -> list[Column]:
    return [
        words("smallest", "GPU", [parse(rung.place.case.device).name if rung.reach else "none" for rung in rungs]),
        numbers("its", "memory", [bytes_text(rung.place.limit if rung.reach else None) for rung in rungs]),
    ]


def _beyond(rung: Rung) -> str:
    if rung.further is None or rung.beyond is None:
        return MISSING
    gpu = parse(rung.beyond.case.device).name
    where = "" if gpu == parse(rung.place.case.device).name else f"{gpu}: "
    needed = rung.needed_bytes(rung.further)
    if needed is None:
        return where + rung.further.outcome.replace("_", " ")
    return f"{where}{bytes_text(needed)}: {'fits too' if needed <= rung.beyond.limit else 'does not fit'}"


def _times(rungs: Sequence[Rung], *, of_batches: bool) -> list[Column]:
    """Return columns of samples per second, or of the step where each rung has a GPU of its own."""
    kind = "estimated" if any(rung.place.case.has_estimated_times for rung in rungs) else "measured"
    if not of_batches:
        return [numbers("step", kind, [seconds_text(rung.step_seconds) for rung in rungs])]
    rates = [rung.samples_per_second for rung in rungs]
    first = rates[0]
    return [
        numbers("samples/s", kind, [MISSING if rate is None else f"{rate:,.1f}" for rate in rates]),
        numbers("against", "none", [change_text(rate / first if rate and first else None) for rate in rates]),
    ]


def _why(rung: Rung) -> str:
    """Return why the step fits nowhere."""
    needed = rung.needed_bytes(rung.record)
    if needed is None:
        return (rung.record and rung.record.detail) or "it was not run"
    where = "not even one sample fits" if rung.place.case.batch_size == 1 else "no GPU holds it"
    return f"{where}: it needs {bytes_text(needed)}"


def document(
    rungs: Sequence[Rung], *, model: str, of_batches: bool, chosen: Rung | None, left_out: dict[str, str]
) -> bytes:
    """Return one JSON document, one field per line."""
    ways = [
        {
            "way": rung.label, "fits": rung.reach > 0, "is_chosen": rung is chosen,
            "batch_size": rung.reach if of_batches else rung.place.case.batch_size,
            "device": parse(rung.place.case.device).name, "memory_bytes": rung.place.limit,
            "outcome": rung.record and rung.record.outcome, "evidence": rung.evidence,
            "needed_bytes": rung.needed_bytes(rung.record),
            "beyond_device": rung.beyond and parse(rung.beyond.case.device).name,
            "beyond_outcome": rung.further and rung.further.outcome,
            "beyond_bytes": rung.needed_bytes(rung.further),
            "step_seconds": rung.step_seconds, "samples_per_second": rung.samples_per_second,
            "has_estimated_times": rung.place.case.has_estimated_times,
        }
        for rung in rungs
    ]  # fmt: skip
    fields = {
        "schema": 1, "model": model, "context_bytes": rungs[0].place.context_bytes, "ways": ways, "left_out": left_out
    }  # fmt: skip
    return encode_indented(fields)
