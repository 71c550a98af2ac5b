"""What the peak is made of, from a record's readings. Pure: knows nothing of files or of screens."""

from __future__ import annotations

import msgspec

from profiler.core.record import Readings


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """The peak as a sum of three, in bytes."""

    static: int  # parameters, buffers, optimizer state, inputs, and the gradients that were there at the peak
    saved: int  # what the forward keeps for the backward; all of it is counted as still held, as far as it fits
    transient: int  # the rest: recomputed activations, gradients of activations, workspaces


def compose(readings: Readings) -> Composition | None:
    """Split the peak so that static + saved + transient is the peak; None where a part was not measured."""
    if readings.peak_bytes is None or readings.start_bytes is None or readings.saved_bytes is None:
        return None
    static = min(readings.peak_bytes, readings.start_bytes + (readings.peak_gradient_bytes or 0))
    held = 0 if readings.peak_phase == "optimizer" else readings.saved_bytes
    saved = min(held, readings.peak_bytes - static)
    return Composition(static=static, saved=saved, transient=readings.peak_bytes - static - saved)
