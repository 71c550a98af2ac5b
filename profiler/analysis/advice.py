"""Recommends a strategy from the rows of one group, and tells what fits in memory.

Only rows that are ok are recommended: wrong gradients are no saving, and neither is what did not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from profiler.analysis.pairing import Side, by_group
from profiler.analysis.rows import SURE, Row, against, is_apart, slowness, time_verdict_of
from profiler.core.case import Case, Choice
from profiler.core.gpu_specs import CONTEXT_BYTES, parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import bytes_needed

MOST = 0.9  # fraction of the largest saving: the fastest row that saves so much is recommended
LEAST = 0.02  # fraction of the baseline's peak: a smaller saving counts as none
MOST_POINTS = 40  # most points of a frontier
MOST_TRIED = 2**24
FARTHEST = 8  # so many times the last number that fit, or the last step to it, is the most that is tried next
PATIENCE = 2  # consecutive guesses that may narrow the range by less than half: a line crawls along a bend


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommendation for a group. If nothing in it is ok, every field is empty."""

    chosen: Row | None = None  # the strategy to take; the baseline itself if no other saves memory
    baseline: Row | None = None  # the step without checkpointing, if it is ok
    rivals: tuple[Row, ...] = ()  # save as much, in times that cannot be told apart from the chosen one's
    certainty: str = "missing"  # how sure the time of the chosen row is
    lowest: Row | None = None  # the row with the lowest peak


def advise(rows: Sequence[Row]) -> Advice:
    """Recommend the fastest of the rows that save most; if `none` did not run, of all rows; if nothing saves, `none`.

    Of rows whose times cannot be told apart from the fastest, the one with the lowest peak is taken.
    """
    measured = [row for row in rows if row.has_peak]
    if not measured:
        return Advice()
    baseline = next((row for row in measured if row.case.label == "none"), None)
    lowest, good = min(measured, key=_peak), measured
    if baseline:
        most = _peak(baseline) - _peak(lowest)  # that can be saved
        least = MOST * most if most >= LEAST * _peak(baseline) else float("inf")
        good = [row for row in measured if _peak(baseline) - _peak(row) >= least]
    chosen = _fastest(good) if good else baseline
    assert chosen, "where nothing is good, there is a baseline that it was compared with"
    return Advice(
        chosen=chosen,
        baseline=baseline,
        rivals=tuple(row for row in good if row is not chosen and _is_rival(row, chosen)),
        certainty=certainty(chosen, baseline=baseline),
        lowest=lowest,
    )


def _fastest(rows: Sequence[Row]) -> Row:
    """Return of the fastest that cannot be told apart the row with the lowest peak; none that is beaten in both."""
    timed = sorted((row for row in rows if row.step_seconds is not None), key=slowness)
    if not timed:
        return min(rows, key=_peak)
    first = timed[0]
    timed = [row for at, row in enumerate(timed) if all(_peak(row) < _peak(faster) for faster in timed[:at])]
    return min((row for row in timed if row is first or _is_rival(row, first)), key=_peak)


def _is_rival(row: Row, chosen: Row) -> bool:
    timed = row.step_seconds is not None and chosen.step_seconds is not None
    return timed and not is_apart(row, chosen)


def _peak(row: Row) -> int:
    assert row.readings.peak_bytes is not None, "only rows with a peak are looked at"
    return row.readings.peak_bytes


class BudgetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The best strategy that fits, from this budget up to that of the next point."""

    budget_bytes: int
    best: Row
    by: str  # why it is the best: "time", "flops" (no time is known), or "peak" (neither is known)
    rivals: tuple[Row, ...] = ()  # also fit, in times that cannot be told apart from its own


def budget_frontier(rows: Sequence[Row]) -> tuple[BudgetPoint, ...]:
    """Return a point for each budget at which the best strategy changes, the smallest first; empty if nothing is ok.

    Times decide if they are known, else FLOPs, else the peak alone. Of more than MOST_POINTS points so many are
    returned, evenly and with both ends: each is true, but a budget in between may have a better one.
    """
    measured = sorted((row for row in rows if row.has_peak), key=lambda row: (_peak(row), row.case.label != "none"))
    baseline = next((row for row in measured if row.case.label == "none"), None)
    best: list[Row] = []
    for row in measured:
        if not best or _is_better(row, best[-1], baseline):
            if best and _peak(best[-1]) == _peak(row):
                best.pop()
            best.append(row)
    if len(best) > MOST_POINTS:
        best = [best[at * (len(best) - 1) // (MOST_POINTS - 1)] for at in range(MOST_POINTS)]
    points = []
    for row in best:
        by = ("time", "flops", "peak")[_cost(row)[0]]
        fitting = [other for other in measured if by == "time" and other is not row and _peak(other) <= _peak(row)]
        rivals = tuple(other for other in fitting if _is_rival(other, row))
        points.append(BudgetPoint(budget_bytes=_peak(row), best=row, by=by, rivals=rivals))
    return tuple(points)


def _is_better(row: Row, before: Row, baseline: Row | None) -> bool:
    """Whether a row is faster; if it takes more memory, or would replace `none`, by more than chance."""
    if _cost(row) >= _cost(before):
        return False
    by_time = _cost(row)[0] == _cost(before)[0] == 0
    is_free = _peak(row) == _peak(before) and before is not baseline
    return is_free or not by_time or row is baseline or is_apart(row, before)


def _cost(row: Row) -> tuple[int, float]:
    """Return a sort key: the time, else the FLOPs, else nothing; what is known comes first."""
    if row.step_seconds is not None:
        return 0, slowness(row)
    if row.readings.flops is not None:
        return 1, float(row.readings.flops)
    return 2, 0.0


def certainty(row: Row, *, baseline: Row | None) -> str:
    """Return how sure the time against the baseline is: "missing", "estimated", "single", "noisy", "same" or "sure"."""
    if row.time is None:
        return "missing"
    if row.case.has_estimated_times:
        return "estimated"
    ratio = against(row, baseline) if baseline else None
    if baseline is None or ratio is None or ratio.interval is None:
        return "single"
    time_verdict = time_verdict_of(row, baseline)
    return "noisy" if time_verdict == "too noisy to tell" else "sure" if time_verdict in SURE else "same"


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
        device = replace(device, bytes=self.limit, context_bytes=self.context_bytes)
        return replace(self.case, device=str(device))

    @property
    def foreseen(self) -> Place:
        return replace(self, case=self.case.foreseen)


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the step, where it fits at the most, and what was run there."""

    label: Choice  # the strategy or a plan's, and levers
    reach: int  # the largest batch, or how many GPUs from the largest on; 0: it fits nowhere
    place: Place  # if it fits nowhere, where it needs least
    beyond: Place | None  # one sample more, or the next smaller GPU
    plan: PlanFile | None = None
    row: Row | None = None  # of the step at its place
    further: Row | None = None  # beyond

    @property
    def samples_per_second(self) -> float | None:
        return samples_per_second(self.row) if self.row else None

    def needed_bytes(self, row: Row | None) -> int | None:
        """Return what a step took of its device, CUDA's context included; None if it did not run to its end."""
        return taken_bytes(row, self.place.context_bytes) if row else None


def samples_per_second(row: Row) -> float | None:
    """Return the rate of the median step, over all micro-batches and ranks; None without a time or a batch size."""
    case = row.case
    if case.batch_size is None or not row.step_seconds:
        return None
    return case.batch_size * case.accumulate * case.num_ranks / row.step_seconds


def taken_bytes(row: Row, context_bytes: int = CONTEXT_BYTES) -> int | None:
    """Return the bytes that a step takes of its device: on a GPU what is reserved, and CUDA's own context.

    None if it is not ok or was not measured.
    """
    return bytes_needed(row.readings, row.case.device, context_bytes) if row.outcome == "ok" else None


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
    fitting = [row for row in rows if row.has_peak and holds(row) is not False]
    rated = [(rate, row) for row in fitting if (rate := samples_per_second(row)) is not None]
    best: list[tuple[float, Row]] = []
    for rate, row in sorted(rated, key=lambda point: (_peak(point[1]), -point[0])):
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
        _side_advice(list(points.get(group, {}).values()), SideAdvice(group=group, label=side.label, memory_bytes=None))
        for group in grouped[0]
        for side, points in zip(sides, grouped, strict=True)
    )


def _side_advice(rows: Sequence[Row], advice: SideAdvice) -> SideAdvice:
    memory = next((row.environment.device_bytes for row in rows if row.environment), None)
    needs = [(taken, row) for row in rows if (taken := taken_bytes(row)) is not None]
    fitting = [row for taken, row in needs if memory is not None and taken <= memory]
    advice = replace(advice, memory_bytes=memory)
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


def largest_that_fits(needed: Callable[[int], int | None], *, limit: int, start: int, within: float = 0.0) -> int:
    """Return the largest n >= 1 with needed(n) <= limit, where `needed` grows, or one smaller by up to `within` of it.

    0 if there is none.

    None from `needed` is more than any limit. The next guess is where a line through the two nearest known points, of
    one point and 0, meets the limit, or the middle if that does not narrow it down.
    """
    sizes: dict[int, int] = {}
    low, high, guess, slow = 0, MOST_TRIED + 1, min(start, MOST_TRIED), 0
    while high - low > max(1, within * low):
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
        middle = (low + high) // 2 if high <= MOST_TRIED else low + FARTHEST * (low - before)
        guess = middle if line is None else min(line, low * FARTHEST or high - 1)
        least = max(1, int(within * low))  # from either end
        guess = max(low + least, min(guess, high - least))
    return low


def _line_meets(sizes: dict[int, int], low: int, high: int, limit: int) -> int | None:
    """Return where the line through the two nearest points meets the limit; None if beyond what does not fit."""
    nearest = sorted(sizes, key=lambda number: min(abs(number - low), abs(number - high)))[:2]
    if not nearest:
        return None
    lower, upper = sorted([0, *nearest][-2:])
    rise = (sizes[upper] - sizes.get(lower, 0)) / (upper - lower)
    if rise <= 0:
        return None
    meets = int(lower + (limit - sizes.get(lower, 0)) / rise)
    return meets if meets < high or high > MOST_TRIED else None
