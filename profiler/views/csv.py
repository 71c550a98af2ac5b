"""One line a case in base units, for spreadsheets and scripts: knows nothing of files or of commands."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import pandas as pd

from profiler.analysis.rows import Row, rows
from profiler.record import PHASES, Readings
from profiler.store import Run
from profiler.units import MISSING
from profiler.views.cells import is_predicted
from profiler.views.samples import TIMES, of
from profiler.views.spreadsheet import safe

STATIC = ("parameters", "buffers", "gradients", "optimizer", "inputs")


def render(run: Run) -> bytes:
    """A run as a CSV file in UTF-8."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Bytes as whole numbers, seconds as medians with the raw samples beside them; empty where not measured."""
    lines = [{name: safe(value) for name, value in _line(row).items()} for row in rows]
    text: str = pd.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\n")
    return text


def _line(row: Row) -> dict[str, Any]:
    return {**_what(row), **_memory(row.readings, row), **_time(row), **_verdict(row), **_where(row)}


def _what(row: Row) -> dict[str, Any]:
    case, built = row.case, row.built
    return {
        "case": case.id,
        "model": case.model,
        "strategy": case.strategy,
        "split": built.split if built else None,
        "outcome": row.outcome,
        "detail": row.detail,
        "predicted": is_predicted(row),
        "optimizer": case.optimizer,
        "batch_size": case.batch_size,
        "precision": case.precision,
        "accumulate": case.accumulate,
        "keep_gradients": case.keep_gradients,
        "data": built.data if built else case.data,
        "seed": case.seed,
        "num_parameters": built.num_parameters if built else None,
        "num_blocks": built.num_blocks if built else None,
    }


def _memory(readings: Readings, row: Row) -> dict[str, Any]:
    categories = readings.static_bytes or {}
    phases = readings.phases or {}
    return {
        **{f"static_{name}_bytes": categories.get(name) for name in STATIC},
        "static_bytes": row.static_bytes,
        "start_bytes": readings.start_bytes,
        "saved_bytes": readings.saved_bytes,
        **{f"{name}_peak_bytes": phases[name].allocated if name in phases else None for name in PHASES},
        "peak_bytes": readings.peak_bytes,
        "peak_phase": readings.peak_phase,
        "peak_gradient_bytes": readings.peak_gradient_bytes,
        "reserved_bytes": readings.reserved_bytes,
        "device_bytes": readings.device_bytes,
        "peak_ratio": row.peak_ratio,
        "prediction_error": row.prediction_error,
        "forward_flops": readings.forward_flops,
        "backward_flops": readings.backward_flops,
    }


def _time(row: Row) -> dict[str, Any]:
    samples = {name: of(row, name) for name in TIMES}
    low, high = row.time_ratio_range or (None, None)
    return {
        **{f"{name}_seconds": median(found) if found else None for name, found in samples.items()},
        "step_spread": row.step_spread,
        "time_ratio": row.time_ratio,
        "time_ratio_least": low,
        "time_ratio_most": high,
        **{f"{name}_seconds_samples": ";".join(map(repr, found)) or None for name, found in samples.items()},
    }


def _verdict(row: Row) -> dict[str, Any]:
    return {
        "gradients": None if row.gradients == MISSING else row.gradients,
        "gradients_largest_difference": row.equality.largest_difference if row.equality else None,
        "noise_floor": row.equality.noise_floor if row.equality else None,
        "precision_difference": row.equality.precision_difference if row.equality else None,
        "on_frontier": row.on_frontier,
        "notes": "; ".join(note.text for note in row.notes) or None,
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
