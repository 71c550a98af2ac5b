"""Finds what fits in memory: strategies on devices, the largest batch, the sides of a comparison; and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from profiler.analysis.advice import budget_frontier
from profiler.analysis.pairing import Side, by_group
from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.gpu_specs import Rates
from profiler.core.record import bytes_needed

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
    by_case: dict[Case, list[Row]] = {}
    for row in rows:
        if row.case.has_estimated_times and row.outcome == "ok":
            by_case.setdefault(row.case.baseline, []).append(row)
    ordered = sorted(devices, key=lambda device: device.memory_bytes)
    return [_fit(device, case, of_case) for case, of_case in by_case.items() for device in ordered]


def _fit(device: Holder, case: Case, rows: Sequence[Row]) -> Fit:
    needs = [
        (row, nbytes, row.readings.flops or 0)
        for row in rows
        if (nbytes := bytes_needed(row.readings, "cuda")) is not None
    ]
    held = [need for need in needs if need[1] <= device.memory_bytes]
    # many strategies add no FLOPs; where nothing fits, the one that needs least is told
    least = min(held, key=lambda need: (need[2], need[0].case != case, need[1]), default=None)
    row, nbytes, flops = least or min(needs, key=lambda need: need[1])
    plain = next((flops for row, _, flops in needs if row.case == case), 0)
    return Fit(
        device=device.name,
        memory_bytes=device.memory_bytes,
        case=case,
        strategy=str(row.case.label) if held else None,
        needed_bytes=nbytes,
        extra_flops=flops / plain - 1 if held and plain else None,
    )


def samples_per_second(row: Row) -> float | None:
    """Return the rate of the median step, over all micro-batches and ranks; None without a time or a batch size."""
    case = row.case
    if case.batch_size is None or not row.step_seconds:
        return None
    return case.batch_size * case.accumulate * case.num_ranks / row.step_seconds


def taken_bytes(row: Row) -> int | None:
    """Return the bytes that a step takes of its device: on a GPU what is reserved, and CUDA's own context.

    None if it is not ok or was not measured.
    """
    return bytes_needed(row.readings, row.case.device) if row.outcome == "ok" else None


def holds(row: Row) -> bool | None:
    """Whether the step fits its device: a measured one did, a predicted one is compared. None: not known."""
    if row.outcome != "ok" or not row.case.is_predicted:
        return {"out_of_memory": False, "ok": True}.get(row.outcome)
    limit, taken = row.environment.device_bytes if row.environment else None, taken_bytes(row)
    return None if limit is None or taken is None else taken <= limit


def device_memory(rows: Sequence[Row]) -> int | None:
    """Return the memory of the rows' device; None if it is not known, or they have several."""
    sizes = {row.environment.device_bytes for row in rows if row.environment}
    return sizes.pop() if len(sizes) == 1 else None


def throughput_frontier(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with more samples per second than all that take no more memory; the smallest first.

    Rows that do not fit their device are left out.
    """
    points = [
        (row.readings.peak_bytes, -rate, row)
        for row in rows
        if row.outcome == "ok" and holds(row) is not False and row.readings.peak_bytes is not None
        if (rate := samples_per_second(row)) is not None
    ]
    best: list[tuple[float, Row]] = []
    for _, slowness, row in sorted(points, key=lambda point: point[:2]):
        if not best or slowness < best[-1][0]:
            best.append((slowness, row))
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


def _side_advice(group: tuple[str, ...], label: str, rows: Sequence[Row]) -> SideAdvice:
    memory = next((row.environment.device_bytes for row in rows if row.environment), None)
    needs = [(taken, row) for row in rows if (taken := taken_bytes(row)) is not None]
    fitting = [row for taken, row in needs if memory is not None and taken <= memory]
    advice = SideAdvice(group=group, label=label, memory_bytes=memory)
    if not needs:
        return replace(advice, reason="nothing ran" if rows else "not in this run")
    if memory is None:
        return replace(advice, reason="its memory is not known")
    if not fitting:
        return replace(advice, needed_bytes=min(taken for taken, _ in needs), reason="none of these fits")
    if all(row.step_seconds is None for row in fitting):
        return replace(advice, reason="no times")
    best = budget_frontier(fitting)[-1].best
    strategy = str(best.case.label)
    return replace(advice, strategy=strategy, needed_bytes=taken_bytes(best), step_seconds=best.step_seconds)


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
        line = _line_meets(sizes, low, high, limit) if slow < PATIENCE else None
        middle = (low + high) // 2 if high <= MOST_TRIED else low * FARTHEST
        guess = middle if line is None else min(line, low * FARTHEST or high - 1)
        guess = max(low + 1, min(guess, high - 1))
    return low


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
