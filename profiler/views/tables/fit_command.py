"""The ways to make a user's command fit a memory: a row for each, all of them rehearsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiler.core.units import MISSING, byte_unit, bytes_text, change_text, count_text, scaled
from profiler.scripts.report import Variant, phase_name
from profiler.views.tables.grid import Table, numbers, telling, words

FITS = "<- fits"
Way = tuple[str, Variant, int | None]  # a label, the command under it, and what it needs


def table(ways: Sequence[Way], *, chosen: int | None, limit_bytes: int, below: Sequence[str]) -> Table:
    """Return a row for each way, `chosen` marked, the command as it is first."""
    largest = [variant.largest for _, variant, _ in ways]
    size, unit = byte_unit(process.reserved_bytes for process in largest)
    said = [
        FITS if place == chosen else "fits" if needed is not None and needed <= limit_bytes else ""
        for place, (_, _, needed) in enumerate(ways)
    ]
    seconds = [_seconds(variant) for _, variant, _ in ways]
    plain = seconds[0]
    changes = ["baseline", *(change_text(one / plain) if one and plain else MISSING for one in seconds[1:])]
    figures = (
        numbers("peak", unit, [scaled(process.peak_bytes, size) for process in largest]),
        numbers("reserved", unit, [scaled(process.reserved_bytes, size) for process in largest]),
        numbers("needed", unit, [scaled(needed, size) for _, _, needed in ways]),
        numbers("step", "estimated", changes if any(seconds[1:]) else [MISSING] * len(ways)),
    )
    return Table(
        columns=(
            words("way", "", [label for label, _, _ in ways]),
            words("", "", said),
            *telling(figures),
            words("peak in", "", [phase_name(process.peak) for process in largest]),
            words("line", "", [process.peak.line for process in largest]),
        ),
        cuts=(2,),
        below=(*(f"{label}: {text}" for label, variant, _ in ways for text in _changes(variant)), *below),
    )


def _changes(variant: Variant) -> Iterator[str]:
    """Yield what was changed of each model, once."""
    made = (applied for process in variant.processes for applied in process.applied if applied.strategy != "none")
    texts = {
        f"{one.module}, {count_text(one.num_blocks, 'block')} recomputed{f', {one.split}' if one.split else ''}"
        if one.num_blocks
        else f"{one.module}, {one.split or 'whole'}": None
        for one in made
        if one.why is None
    }
    yield from texts


def _seconds(variant: Variant) -> float | None:
    """Return the estimated seconds of a step of the slowest process; None where that is not known."""
    known = [process.estimated_seconds for process in variant.processes if process.estimated_seconds is not None]
    return max(known) if known and len(known) == len(variant.processes) else None


def need_text(variant: Variant) -> str:
    """Return where the memory that decides is reserved, in words: the phase, its line and what CUDA itself takes."""
    phase = variant.largest.most_reserved
    at = f" ({phase.line})" if phase.line else ""
    context = f", and {bytes_text(variant.context_bytes)} for CUDA itself" if variant.context_bytes else ""
    return f"{bytes_text(phase.reserved_bytes or 0)} are reserved in {phase_name(phase)}{at}{context}"
