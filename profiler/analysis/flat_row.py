"""A row as one flat line of named values, for every kind of table."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from profiler.analysis.rows import Row
from profiler.core import trace_data
from profiler.core.case import SWITCHES
from profiler.core.record import PHASES, Readings
from profiler.core.trace_data import BUCKETS, GATHERED

Samples = tuple[float, ...]


class FlatRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One case. Bytes and seconds; times are medians, with their raw samples; None where it was not measured.

    Before `data` it has the switches of the case that have a column: `keep_gradients`, ...
    """

    case: str
    model: str
    strategy: str
    split: str | None
    outcome: str
    detail: str | None
    predicted: bool
    evidence: str
    optimizer: str
    batch_size: int | None
    precision: str
    accumulate: int
    parallel: str | None
    ranks: int | None
    data: str
    seed: int
    num_parameters: int | None
    num_blocks: int | None
    static_parameters_bytes: int | None
    static_buffers_bytes: int | None
    static_gradients_bytes: int | None
    static_optimizer_bytes: int | None
    static_inputs_bytes: int | None
    static_communication_buckets_bytes: int | None
    static_gathered_parameters_bytes: int | None
    static_bytes: int | None
    start_bytes: int | None
    saved_bytes: int | None
    forward_peak_bytes: int | None
    backward_peak_bytes: int | None
    optimizer_peak_bytes: int | None
    peak_bytes: int | None
    peak_phase: str | None
    peak_gradient_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    peak_ratio: float | None
    prediction_error: float | None
    prediction_against: str | None
    forward_flops: int | None
    backward_flops: int | None
    forward_seconds: float | None
    backward_seconds: float | None
    optimizer_seconds: float | None
    step_seconds: float | None
    step_spread: float | None
    time_ratio: float | None
    time_ratio_least: float | None
    time_ratio_most: float | None
    time_verdict: str | None
    forward_seconds_samples: Samples | None
    backward_seconds_samples: Samples | None
    optimizer_seconds_samples: Samples | None
    step_seconds_samples: Samples | None
    gradients: str | None
    gradients_largest_difference: float | None
    noise_floor: float | None
    precision_difference: float | None
    on_frontier: bool
    notes: str | None
    device: str
    device_name: str | None
    device_limit_bytes: int | None
    torch: str | None
    python: str | None
    gcprof: str | None
    started: str | None


SWITCHED = [name for name, switch in SWITCHES.items() if switch.has_column]
if not TYPE_CHECKING:
    _fields = [(field.name, field.type) for field in msgspec.structs.fields(FlatRow)]
    _place = FlatRow.__struct_fields__.index("data")
    _fields[_place:_place] = [(name, bool) for name in SWITCHED]
    FlatRow = msgspec.defstruct(
        "FlatRow", _fields, namespace={"__doc__": FlatRow.__doc__}, module=__name__, frozen=True, kw_only=True, gc=False
    )

STATIC = {f"static_{name.replace(' ', '_')}_bytes": name for name in (*trace_data.STATIC, BUCKETS, GATHERED)}
PEAKS = {f"{phase}_peak_bytes": phase for phase in PHASES}
TIMES = ("forward", "backward", "optimizer", "step")
COLUMNS: dict[str, type] = {  # name -> str, int, float, bool, or tuple for samples
    field.name: next((kind for kind in (bool, int, float, str) if kind in (field.type, *get_args(field.type))), tuple)
    for field in msgspec.structs.fields(FlatRow)
}


def flat_row(row: Row) -> FlatRow:
    """All columns of one row."""
    return FlatRow(**_what(row), **_memory(row.readings, row), **_time(row), **_verdict(row), **_where(row))


def _what(row: Row) -> dict[str, Any]:
    case, built = row.case, row.built
    return {
        "case": case.id,
        "model": str(case.model),
        "strategy": str(case.strategy),
        "split": built.split if built else None,
        "outcome": row.outcome,
        "detail": row.detail,
        "predicted": case.is_predicted,
        "evidence": row.evidence,
        "optimizer": str(case.optimizer),
        "batch_size": case.batch_size,
        "precision": case.precision,
        "accumulate": case.accumulate,
        "parallel": str(case.parallel) if case.parallel else None,
        "ranks": case.ranks or None,
        **{name: bool(getattr(case, name)) for name in SWITCHED},
        "data": built.data if built else case.data,
        "seed": case.seed,
        "num_parameters": built.num_parameters if built else None,
        "num_blocks": built.num_blocks if built else None,
    }


def _memory(readings: Readings, row: Row) -> dict[str, Any]:
    categories = readings.static_bytes or {}
    phases = readings.phases or {}
    return {
        **{name: categories.get(category) for name, category in STATIC.items()},
        "static_bytes": row.static_bytes,
        "start_bytes": readings.start_bytes,
        "saved_bytes": readings.saved_bytes,
        **{name: phases[phase].allocated if phase in phases else None for name, phase in PEAKS.items()},
        "peak_bytes": readings.peak_bytes,
        "peak_phase": readings.peak_phase,
        "peak_gradient_bytes": readings.peak_gradient_bytes,
        "reserved_bytes": readings.reserved_bytes,
        "device_bytes": readings.device_bytes,
        "peak_ratio": row.peak_ratio,
        "prediction_error": row.prediction_error,
        "prediction_against": row.prediction_against,
        "forward_flops": readings.forward_flops,
        "backward_flops": readings.backward_flops,
    }


def _time(row: Row) -> dict[str, Any]:
    samples: dict[str, Samples | None] = {name: getattr(row.readings, f"{name}_seconds") or None for name in TIMES}
    low, high = row.time_ratio_range or (None, None)
    return {
        **{f"{name}_seconds": median(seconds) if seconds else None for name, seconds in samples.items()},
        "step_spread": row.step_spread,
        "time_ratio": row.time_ratio,
        "time_ratio_least": low,
        "time_ratio_most": high,
        "time_verdict": row.time_verdict,
        **{f"{name}_seconds_samples": seconds for name, seconds in samples.items()},
    }


def _verdict(row: Row) -> dict[str, Any]:
    equality = row.equality
    return {
        "gradients": None if row.gradients == "-" else row.gradients,
        "gradients_largest_difference": equality.largest_difference if equality else None,
        "noise_floor": equality.noise_floor if equality else None,
        "precision_difference": equality.precision_difference if equality else None,
        "on_frontier": row.on_frontier,
        "notes": "; ".join(f"{note.code} {note.text}" for note in row.notes) or None,
    }


def _where(row: Row) -> dict[str, Any]:
    environment = row.environment
    return {
        "device": row.case.device,
        "device_name": environment.device_name if environment else None,
        "device_limit_bytes": environment.device_bytes if environment else None,
        "torch": environment.torch if environment else None,
        "python": environment.python if environment else None,
        "gcprof": environment.gcprof if environment else None,
        "started": environment.started if environment else None,
    }
