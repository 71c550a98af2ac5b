"""Flattens a row into named columns, for every kind of table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from profiler.analysis.rows import Row
from profiler.core.case import SWITCHES
from profiler.core.record import PHASES
from profiler.core.trace_data import BUCKETS, GATHERED, STATIC

Samples = tuple[float, ...]

TIMES = ("forward", "backward", "optimizer", "step")


def flat_row(row: Row) -> dict[str, Any]:
    """Return all columns of a row, in bytes and seconds; times are medians, with raw samples; None: not measured."""
    return {name: read(row) for name, (_, read) in TABLE.items()}


def _switch(name: str, row: Row) -> bool:
    return bool(getattr(row.case, name))


def _static(category: str, row: Row) -> int | None:
    return (row.readings.static_bytes or {}).get(category)


def _peak(phase: str, row: Row) -> int | None:
    phases = row.readings.phases or {}
    return phases[phase].allocated if phase in phases else None


def _samples(phase: str, row: Row) -> Samples | None:
    return getattr(row.readings, f"{phase}_seconds") or None


def _seconds(phase: str, row: Row) -> float | None:
    samples = _samples(phase, row)
    return median(samples) if samples else None


TABLE: dict[str, tuple[type, Callable[[Row], Any]]] = {  # the type of a column, tuple for samples, and its reader
    "case": (str, lambda row: row.case.id),
    "model": (str, lambda row: str(row.case.model)),
    "strategy": (str, lambda row: str(row.case.label)),
    "split": (str, lambda row: row.built and row.built.split),
    "outcome": (str, lambda row: row.outcome),
    "detail": (str, lambda row: row.detail),
    "predicted": (bool, lambda row: row.case.is_predicted),
    "evidence": (str, lambda row: row.evidence),
    "optimizer": (str, lambda row: str(row.case.optimizer)),
    "batch_size": (int, lambda row: row.case.batch_size),
    "precision": (str, lambda row: row.case.precision),
    "accumulate": (int, lambda row: row.case.accumulate),
    "parallel": (str, lambda row: str(row.case.parallel) if row.case.parallel else None),
    "ranks": (int, lambda row: row.case.ranks or None),
    **{name: (bool, partial(_switch, name)) for name, switch in SWITCHES.items() if switch.has_column},
    "data": (str, lambda row: row.data),
    "seed": (int, lambda row: row.case.seed),
    "num_parameters": (int, lambda row: row.built and row.built.num_parameters),
    "num_blocks": (int, lambda row: row.built and row.built.num_blocks),
    **{
        f"static_{category.replace(' ', '_')}_bytes": (int, partial(_static, category))
        for category in (*STATIC, BUCKETS, GATHERED)
    },
    "static_bytes": (int, lambda row: row.static_bytes),
    "start_bytes": (int, lambda row: row.readings.start_bytes),
    "saved_bytes": (int, lambda row: row.readings.saved_bytes),
    **{f"{phase}_peak_bytes": (int, partial(_peak, phase)) for phase in PHASES},
    "peak_bytes": (int, lambda row: row.readings.peak_bytes),
    "peak_phase": (str, lambda row: row.readings.peak_phase),
    "peak_gradient_bytes": (int, lambda row: row.readings.peak_gradient_bytes),
    "reserved_bytes": (int, lambda row: row.readings.reserved_bytes),
    "device_bytes": (int, lambda row: row.readings.device_bytes),
    "peak_ratio": (float, lambda row: row.peak_ratio),
    "prediction_error": (float, lambda row: row.prediction_error),
    "prediction_against": (str, lambda row: row.prediction_against),
    "forward_flops": (int, lambda row: row.readings.forward_flops),
    "backward_flops": (int, lambda row: row.readings.backward_flops),
    **{f"{phase}_seconds": (float, partial(_seconds, phase)) for phase in TIMES},
    "step_spread": (float, lambda row: row.step_spread),
    "time_ratio": (float, lambda row: row.time_ratio),
    "time_ratio_least": (float, lambda row: row.time_ratio_range and row.time_ratio_range[0]),
    "time_ratio_most": (float, lambda row: row.time_ratio_range and row.time_ratio_range[1]),
    "time_verdict": (str, lambda row: row.time_verdict),
    **{f"{phase}_seconds_samples": (tuple, partial(_samples, phase)) for phase in TIMES},
    "gradients": (str, lambda row: None if row.gradients == "-" else row.gradients),
    "gradients_largest_difference": (float, lambda row: row.equality and row.equality.largest_difference),
    "noise_floor": (float, lambda row: row.equality and row.equality.noise_floor),
    "precision_difference": (float, lambda row: row.equality and row.equality.precision_difference),
    "on_frontier": (bool, lambda row: row.on_frontier),
    "notes": (str, lambda row: "; ".join(f"{note.code} {note.text}" for note in row.notes) or None),
    "device": (str, lambda row: row.case.device),
    "device_name": (str, lambda row: row.environment and row.environment.device_name),
    "device_limit_bytes": (int, lambda row: row.environment and row.environment.device_bytes),
    "torch": (str, lambda row: row.environment and row.environment.torch),
    "python": (str, lambda row: row.environment and row.environment.python),
    "gcprof": (str, lambda row: row.environment and row.environment.gcprof),
    "started": (str, lambda row: row.environment and row.environment.started),
}
COLUMNS = {name: kind for name, (kind, _) in TABLE.items()}
