"""Trace -> the numbers that a measurement would have read: knows nothing of torch."""

from __future__ import annotations

from typing import Any

from profiler.core.record import PHASES, PhaseBytes
from profiler.core.trace_data import STATIC, Trace, live, resting


def readings(trace: Trace, reserved: dict[str, int] | None = None) -> dict[str, Any]:
    """The memory and FLOP fields of Readings. `reserved` is the caching allocator's largest by phase. Bytes.

    Static bytes are those of the storages; all others are of the blocks that hold them, where the trace tells those.
    """
    held = live(trace)
    peaks = [(phase, *_peak(trace, held, first, last)) for phase, first, last in trace.spans()]
    phase, at, peak = max(peaks, key=lambda one: one[2])
    forwards = [(first, last) for name, first, last in trace.spans() if name == "forward"]
    return {
        "static_bytes": _static(trace),
        "start_bytes": resting(trace, forwards[0][0] - 1),
        "saved_bytes": max(resting(trace, last) - resting(trace, first - 1) for first, last in forwards),
        "phases": {
            name: PhaseBytes(
                allocated=max(nbytes for phase, _, nbytes in peaks if phase == name),
                reserved=(reserved or {}).get(name),
            )
            for name in PHASES
        },
        "peak_bytes": peak,
        "peak_phase": phase,
        "peak_gradient_bytes": sum(
            one.nbytes for one in trace.allocations if one.category == "gradients" and 0 < one.born < at <= one.died
        ),
        "reserved_bytes": max(reserved.values()) if reserved else None,
        "forward_flops": sum(one.flops for one in trace.operators if one.phase == "forward"),
        "backward_flops": sum(one.flops for one in trace.operators if one.phase in ("backward", "recompute")),
    }


def _peak(trace: Trace, held: list[int], first: int, last: int) -> tuple[int, int]:
    """Where the most is live from one operator to another, and how much; between operators where none ran."""
    if last < first:
        return last, resting(trace, last)
    at = max(range(first, last + 1), key=held.__getitem__)
    return at, held[at]


def _static(trace: Trace) -> dict[str, int]:
    """What is there before the step, by category."""
    found = dict.fromkeys(STATIC, 0)
    for one in trace.allocations:
        if not one.born:
            found[one.category] = found.get(one.category, 0) + one.nbytes - one.unsplit
    return found
