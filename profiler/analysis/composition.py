"""What the peak is made of, from what was stored of it; the parts always sum to it."""

from __future__ import annotations

import msgspec

from profiler.core.record import Readings
from profiler.core.trace_data import BUCKETS, GATHERED

# all of it is there when the step begins
LASTING = ("parameters", "buffers", "optimizer", "inputs", BUCKETS, GATHERED)
CATEGORIES = (*LASTING, "gradients", "static", "saved", "rest")


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """The peak as a sum of three, in bytes."""

    static: int  # parameters, buffers, optimizer state, inputs, and the gradients that were there at the peak
    saved: int  # what the forward keeps for the backward; all of it is counted as still held, as far as it fits
    transient: int  # the rest: recomputed activations, gradients of activations, workspaces


def peak_parts(readings: Readings) -> Composition | None:
    """Split the peak so that static + saved + transient is the peak; None where a part was not measured."""
    if readings.peak_bytes is None or readings.start_bytes is None or readings.saved_bytes is None:
        return None
    static = min(readings.peak_bytes, readings.start_bytes + (readings.peak_gradient_bytes or 0))
    held = 0 if readings.peak_phase == "optimizer" else readings.saved_bytes
    saved = min(held, readings.peak_bytes - static)
    return Composition(static=static, saved=saved, transient=readings.peak_bytes - static - saved)


class Category(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the peak. `static` is what is there before the step and was not told apart."""

    name: str
    nbytes: int


def categories(readings: Readings) -> tuple[Category, ...]:
    """The parts of the peak in the order of CATEGORIES, empty ones left out; nothing where they were not measured.

    Gradients are those of this step that were there at the peak. Where the static categories were not read, or do not
    fit into what was live before the step, all that is static is one part.
    """
    parts = peak_parts(readings)
    if parts is None:
        return ()
    known = {name: (readings.static_bytes or {}).get(name, 0) for name in LASTING}
    gradients = min(readings.peak_gradient_bytes or 0, parts.static)
    known["gradients"] = gradients
    rest = parts.static - sum(known.values())
    if rest < 0 or not readings.static_bytes:
        known, rest = {}, parts.static
    sizes = {**known, "static": rest, "saved": parts.saved, "rest": parts.transient}
    return tuple(Category(name=name, nbytes=sizes[name]) for name in CATEGORIES if sizes.get(name))
