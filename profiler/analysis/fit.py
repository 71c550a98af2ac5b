"""Which devices hold a training step, and with which strategy. Pure: knows nothing of files or of screens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.gpu_specs import Rates

CONTEXT = 600 * 2**20  # bytes that a process with CUDA, cuBLAS and cuDNN takes of a device before the first tensor


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One device and what it holds of one case: the strategy that recomputes least, or none at all."""

    device: str
    memory_bytes: int
    case: Case  # without checkpointing
    strategy: str | None
    needed_bytes: int  # of that strategy, or of the one that needs least, with CONTEXT
    extra_flops: float | None  # over those of `none`, as a fraction


def fits(rows: Sequence[Row], devices: Iterable[Rates]) -> list[Fit]:
    """Every device with every predicted case that rows are of, the device with the least memory first."""
    predicted = [row for row in rows if row.case.is_predicted and row.outcome == "ok"]
    cases = dict.fromkeys(row.case.baseline for row in predicted)
    ordered = sorted(devices, key=lambda device: device.memory_bytes)
    return [
        _fit(device, case, [row for row in predicted if row.case.baseline == case])
        for case in cases
        for device in ordered
    ]


def needed(row: Row) -> int:
    """What a process takes of the device at its peak: what the allocator reserves, and CUDA itself. Bytes."""
    readings = row.readings
    taken = readings.reserved_bytes if readings.reserved_bytes is not None else readings.peak_bytes
    assert taken is not None, "an ok row was measured"
    return taken + CONTEXT


def _fit(device: Rates, case: Case, rows: Sequence[Row]) -> Fit:
    held = [row for row in rows if needed(row) <= device.memory_bytes]
    chosen = min(held, key=lambda row: (_flops(row), needed(row))) if held else min(rows, key=needed)
    none = next((row for row in rows if row.case == case), None)
    return Fit(
        device=device.name,
        memory_bytes=device.memory_bytes,
        case=case,
        strategy=str(chosen.case.strategy) if held else None,
        needed_bytes=needed(chosen),
        extra_flops=_flops(chosen) / _flops(none) - 1 if none and held and _flops(none) else None,
    )


def _flops(row: Row) -> int:
    return (row.readings.forward_flops or 0) + (row.readings.backward_flops or 0)
