"""Finds what fits in memory: strategies on devices, the largest batch, the sides of a comparison; and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from profiler.analysis.advice import budget_frontier
from profiler.analysis.pairing import Side, by_group
from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.gpu_specs import Rates
from profiler.core.record import needed_bytes

MOST_TRIED = 2**24
FARTHEST = 8  # at most so many times the last number that fit is tried next
PATIENCE = 2  # consecutive guesses that may narrow the range by less than half: a line crawls along a bend


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory of this size, whatever the device."""

    name: str
    memory_bytes: int


Holder = Rates | Memory  # what a step may have to fit in


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One device and one case: the strategy that fits and recomputes least, if any does."""

    device: str
    memory_bytes: int
    case: Case  # without checkpointing
    strategy: str | None
    needed_bytes: int  # of that strategy, else of the one that needs least, with CUDA's context
    extra_flops: float | None  # relative to those of `none`


def fits(rows: Sequence[Row], devices: Iterable[Holder]) -> list[Fit]:
    """Return the fit of every predicted case on every device, the device with the least memory first."""
    predicted = [row for row in rows if row.case.has_estimated_times and row.outcome == "ok"]
    by_case: dict[Case, list[Row]] = {}
    for row in predicted:
        by_case.setdefault(row.case.baseline, []).append(row)
    ordered = sorted(devices, key=lambda device: device.memory_bytes)
    return [_fit(device, case, of_case) for case, of_case in by_case.items() for device in ordered]


def _fit(device: Holder, case: Case, rows: Sequence[Row]) -> Fit:
    held = [row for row in rows if _needed(row) <= device.memory_bytes]
    least = min(held, key=lambda row: (_flops(row), row.case != case, _needed(row)), default=None)  # many add no FLOPs
    chosen = least or min(rows, key=_needed)
    none = next((row for row in rows if row.case == case), None)
    return Fit(
        device=device.name,
        memory_bytes=device.memory_bytes,
        case=case,
        strategy=str(chosen.case.strategy) if held else None,
        needed_bytes=_needed(chosen),
        extra_flops=_flops(chosen) / _flops(none) - 1 if none and held and _flops(none) else None,
    )


def _needed(row: Row) -> int:
    return needed_bytes(row.readings)


def _flops(row: Row) -> int:
    return (row.readings.forward_flops or 0) + (row.readings.backward_flops or 0)


def samples_per_second(row: Row) -> float | None:
    """Return the rate of the median step, over all micro-batches and ranks; None without a time or a batch size."""
    case = row.case
    if case.batch_size is None or not row.step_seconds:
        return None
    return case.batch_size * case.accumulate * case.num_ranks / row.step_seconds


def holds(row: Row) -> bool | None:
    """Whether the step fits its device: a measured one did, a predicted one is compared. None: not known."""
    if row.outcome == "out_of_memory":
        return False
    if row.outcome != "ok":
        return None
    if not row.case.is_predicted:
        return True
    limit = row.environment.device_bytes if row.environment else None
    if limit is None or row.readings.peak_bytes is None:
        return None
    return (row.readings.peak_bytes if row.case.twin.device == "cpu" else _needed(row)) <= limit


def device_memory(rows: Sequence[Row]) -> int | None:
    """Return the memory of the rows' device; None if it is not known, or they have several."""
    sizes = {row.environment.device_bytes for row in rows if row.environment}
    return sizes.pop() if len(sizes) == 1 else None


def throughput_frontier(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with more samples per second than all that take no more memory; the smallest first.

    Rows that do not fit their device are left out.
    """
    fitting = [row for row in rows if row.outcome == "ok" and holds(row) is not False]
    points = [(row.readings.peak_bytes, samples_per_second(row), row) for row in fitting]
    known = [(peak, rate, row) for peak, rate, row in points if peak is not None and rate is not None]
    best: list[tuple[float, Row]] = []
    for _, rate, row in sorted(known, key=lambda point: (point[0], -point[1])):
        if not best or rate > best[-1][0]:
            best.append((rate, row))
    return [row for _, row in best]


class SideAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest strategy that fits, in one group on one side, or why there is none."""

    group: tuple[str, ...]
    label: str
    memory_bytes: int | None
    strategy: str | None = None
    needed_bytes: int | None = None  # of that strategy, else of the one that needs least
    step_seconds: float | None = None
    reason: str | None = None


def advise_sides(sides: Sequence[Side], *, align: Sequence[str]) -> tuple[SideAdvice, ...]:
    """Return the advice for every group of the baseline, on every side."""
    grouped = [by_group(side, align) for side in sides]
    return tuple(
        _side_advice(group, side.label, list(points.get(group, {}).values()))
        for group in grouped[0]
        for side, points in zip(sides, grouped, strict=True)
    )


def _taken(row: Row) -> int | None:
    """Return the bytes that a step takes of its device: on a GPU what is reserved, and CUDA's own context."""
    if row.outcome != "ok" or row.readings.peak_bytes is None:
        return None
    return row.readings.peak_bytes if row.case.device == "cpu" else _needed(row)


def _side_advice(group: tuple[str, ...], label: str, of_group: Sequence[Row]) -> SideAdvice:
    needs = [(row, nbytes) for row in of_group if (nbytes := _taken(row)) is not None]
    memory = next((row.environment.device_bytes for row in of_group if row.environment), None)
    advice = SideAdvice(group=group, label=label, memory_bytes=memory)
    if not needs:
        return msgspec.structs.replace(advice, reason="nothing ran" if of_group else "not in this run")
    if memory is None:
        return msgspec.structs.replace(advice, reason="its memory is not known")
    fitting = [(row.step_seconds, nbytes, row) for row, nbytes in needs if nbytes <= memory]
    if not fitting:
        least = min(nbytes for _, nbytes in needs)
        return msgspec.structs.replace(advice, needed_bytes=least, reason="none of these fits")
    if all(seconds is None for seconds, _, _ in fitting):
        return msgspec.structs.replace(advice, reason="no times")
    best = budget_frontier([row for _, _, row in fitting])[-1].best
    return msgspec.structs.replace(
        advice, strategy=str(best.case.strategy), needed_bytes=_taken(best), step_seconds=best.step_seconds
    )


def largest_that_fits(needed: Callable[[int], int | None], *, limit: int, start: int) -> int:
    """Return the largest n >= 1 with needed(n) <= limit, where `needed` grows; 0 if there is none.

    None from `needed` is more than any limit. The next guess is where a line through the two nearest known points meets
    the limit, or the middle if that does not narrow it down.
    """
    sizes: dict[int, int] = {}
    low, high, guess, slow = 0, MOST_TRIED + 1, min(start, MOST_TRIED), 0
    while high - low > 1:
        width, before = high - low, low
        size = needed(guess)
        if size is not None:
            sizes[guess] = size
        if size is not None and size <= limit:
            low = guess
        else:
            high = guess
        is_narrow = 2 * (high - low) <= width or low >= 2 * before > 0
        slow = 0 if is_narrow else slow + 1
        guess = _next_guess(sizes if slow < PATIENCE else {}, low, high, limit)
    return low


def _next_guess(sizes: dict[int, int], low: int, high: int, limit: int) -> int:
    middle = (low + high) // 2 if high <= MOST_TRIED else low * FARTHEST
    line = _line_meets(sizes, low, high, limit)
    if line is None:
        return max(low + 1, min(middle, high - 1))
    farthest = min(low * FARTHEST or high - 1, high - 1)
    return max(low + 1, min(line, farthest))


def _line_meets(sizes: dict[int, int], low: int, high: int, limit: int) -> int | None:
    """Return where the line through the two nearest points meets the limit; None if there is no rising line."""
    nearest = sorted(sizes, key=lambda number: min(abs(number - low), abs(number - high)))[:2]
    if len(nearest) < 2:
        return None
    lower, upper = sorted(nearest)
    rise = (sizes[upper] - sizes[lower]) / (upper - lower)
    if rise <= 0:
        return None
    return int(lower + (limit - sizes[lower]) / rise)
