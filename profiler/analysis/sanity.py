"""Finds numbers in a record that no measurement can give, and outcomes that its numbers contradict."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from profiler.analysis.rows import static
from profiler.core.record import Readings, Record, evidence, why_invalid
from profiler.core.units import bytes_text

ESTIMATED = "GCP016"  # the note that says that times are of the roofline model
LARGEST = 2**63  # more bytes, FLOPs or seconds than occur
COUNTED = ("built", "equality", "shortage", "stage_seconds", "num_steps")  # no number in these can be below zero either


def impossible(record: Record, passes: Collection[str] | None) -> Iterator[str]:
    """Yield each impossible number, in words; `passes` are those of its trial, None if they are not known."""
    readings = record.readings
    parts = {"": readings, **{name: getattr(record, name) for name in COUNTED}}
    outside = [pair for of, part in parts.items() for pair in _out_of_range(msgspec.to_builtins(part), of)]
    yield from dict.fromkeys([*(f"{name} is {value}" for name, value in outside), *impossible_reading(readings)])
    yield from _ranks(record)
    kind = evidence(record.case, record.environment)
    is_estimate = record.case.is_rehearsed and any(note.code == ESTIMATED for note in record.notes)
    if kind == "rehearsed" and (record.equality or (readings.step_seconds and not is_estimate)):
        yield "a device that computes nothing gave times or gradients"
    is_timed = passes is not None and "time" in passes and kind == "measured"
    if is_timed and record.outcome == "ok" and not readings.step_seconds:
        yield "the outcome is ok, but the step has no time samples"
    if record.outcome == "ok" and (reason := _invalid_gradients(record)):
        yield f"the outcome is ok, but {reason}"


def unsound(record: Record) -> str | None:
    """Return why a stored record that says ok is not, by its own numbers; None if it is, or says something else.

    Of the numbers only those are looked at that runs are compared by: `impossible` takes a tenth of a millisecond.
    """
    if record.outcome != "ok":
        return None
    return next(impossible_reading(record.readings), None) or _invalid_gradients(record)


def _invalid_gradients(record: Record) -> str | None:
    return why_invalid(record.case, record.equality) if record.equality else None


def impossible_reading(readings: Readings) -> Iterator[str]:
    """Yield a sentence for a peak or a step that takes nothing, and for a peak below the static or the saved bytes."""
    peak = readings.peak_bytes
    for name, least in {"peak_bytes": peak, "step_seconds": min(readings.step_seconds or (), default=None)}.items():
        if least is not None and least <= 0:
            yield f"{name} is {least}"
    yield from _below("the peak", peak, static=static(readings), saved=readings.saved_bytes)


def _below(what: str, peak: int | None, **floors: int | None) -> Iterator[str]:
    """Yield each of these bytes that is more than the peak."""
    for name, floor in floors.items():
        if peak is not None and floor is not None and peak < floor:
            yield f"{what} of {bytes_text(peak)} is below the {name} {bytes_text(floor)}"


def _ranks(record: Record) -> Iterator[str]:
    """Yield contradictions between ranks and record, whose bytes are those of the rank with the highest peak."""
    ranks = record.readings.ranks
    if ranks is None:
        return
    if len(ranks) != record.case.num_ranks:
        yield f"it has {len(ranks)} of {record.case.num_ranks} ranks"
    highest = max((rank.peak_bytes for rank in ranks), default=0)
    if highest != record.readings.peak_bytes:
        yield f"the peak is not the highest of its ranks, {bytes_text(highest)}"
    for number, rank in enumerate(ranks):
        static_bytes = sum(rank.static_bytes.values())
        yield from _below(f"rank {number}'s peak", rank.peak_bytes, static=static_bytes, saved=rank.saved_bytes)


def _out_of_range(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number below zero or above LARGEST in nested data, with its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _out_of_range(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _out_of_range(inner, name)
    elif isinstance(value, int | float) and not 0 <= value <= LARGEST:
        yield name, value
