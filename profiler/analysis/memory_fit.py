"""What fits in memory: the largest batch, the smallest GPU, the sides of a comparison; and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from profiler.analysis.advice import budget_frontier
from profiler.analysis.pairing import Side, by_group
from profiler.analysis.rows import Row
from profiler.core.case import Case, Choice
from profiler.core.devices import parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Evidence, Record, bytes_needed, evidence

MOST_TRIED = 2**24
FARTHEST = 8  # at most so many times the last number that fit is tried next
PATIENCE = 2  # consecutive guesses that may narrow the range by less than half: a line crawls along a bend


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A case without strategy and levers, and the memory that it has to fit in. Bytes."""

    case: Case
    limit: int
    context_bytes: int  # of it, what CUDA takes

    @property
    def limited(self) -> Case:
        """The case on its device; a rehearsed one has no more memory than the limit."""
        device = parse(self.case.device)
        if not device.is_rehearsed:
            return self.case
        device = msgspec.structs.replace(device, bytes=self.limit, context_bytes=self.context_bytes)
        return msgspec.structs.replace(self.case, device=str(device))

    @property
    def foreseen(self) -> Place:
        return msgspec.structs.replace(self, case=self.case.foreseen)


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the step, where it fits at the most, and what was run there."""

    label: Choice  # the strategy or a plan's, and levers
    reach: int  # the largest batch, or how many GPUs from the largest on; 0: it fits nowhere
    place: Place  # if it fits nowhere, where it needs least
    beyond: Place | None  # one sample more, or the next smaller GPU
    plan: PlanFile | None = None
    records: tuple[Record, ...] = ()  # at the place, of all rounds
    further: Record | None = None  # beyond

    @property
    def record(self) -> Record | None:
        """The first record of the step at its place."""
        return self.records[0] if self.records else None

    @property
    def step_seconds(self) -> float | None:
        """The median step of all rounds."""
        samples = [second for record in self.records for second in record.readings.step_seconds or ()]
        return median(samples) if samples else None

    @property
    def samples_per_second(self) -> float | None:
        case, seconds = self.place.case, self.step_seconds
        return case.batch_size * case.accumulate / seconds if seconds and case.batch_size else None

    @property
    def evidence(self) -> Evidence | None:
        """How the bytes are known."""
        return evidence(self.record.case, self.record.environment) if self.record else None

    def needed_bytes(self, record: Record | None) -> int | None:
        """Return what a step took of its device, CUDA's context included; None if it did not run to its end."""
        if record is None or record.outcome != "ok":
            return None
        return bytes_needed(record.readings, record.case.device, self.place.context_bytes)


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

    None from `needed` is more than any limit. The next guess is where a line through the two nearest known points, of
    one point and 0, meets the limit, or the middle if that does not narrow it down.
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
    if not nearest:
        return None
    lower, upper = sorted([0, *nearest][-2:])
    rise = (sizes[upper] - sizes.get(lower, 0)) / (upper - lower)
    if rise <= 0:
        return None
    return int(lower + (limit - sizes.get(lower, 0)) / rise)
