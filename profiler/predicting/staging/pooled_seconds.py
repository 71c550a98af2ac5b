"""Derives the seconds of each stage from steps timed in turns, pooled over equal stages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from profiler.analysis.timing_doubts import HELD
from profiler.core.stats import interval

# Ways to run a step: without marks, as a user's step; every stage kept; each stage checkpointed alone; each run of
# stages in one checkpoint. The other ways are save options, by name.
WHOLE, PLAIN, EVERY, TOGETHER = " whole", "", " every", " together"
DOUBT = 1.0  # prior standard deviation of the ratio of whole-step to summed stage differences
LEAST_FACTOR, MOST_FACTOR = 0.5, 10.0
MOST_DOUBT = 0.9  # upper bound on a relative error: a recompute has FLOPs, so takes time, however noisy the machine


class StageWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage runs. Stages of one kind are equal: module classes, parameter shapes and operators."""

    blocks: tuple[int, ...]  # empty for what runs around the blocks
    feeds_next: bool = False  # whether its output goes to the next stage and nowhere else
    kind: Hashable = ()


class StepSample(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one step, and of each stage in it."""

    total: float
    forward: tuple[float, ...]  # including the overhead of the checkpoint around it
    recompute: tuple[float, ...]
    backward: tuple[float, ...]  # known only where the stage is recomputed
    held: float | None = None  # CPU seconds of its thread; None on an asynchronous device


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one stage."""

    forward: float
    backward: float
    early_stop: float  # what a checkpoint adds: a recompute up to its last saved tensor, and host overhead
    error: float = 0.0  # of the last: half of its confidence interval
    inner: float | None = None  # what a checkpoint adds to a stage that others of its run follow; None: unknown
    inner_error: float = 0.0
    options: dict[str, tuple[float, float]]  # forward and backward under each save option
    option_errors: dict[str, float] = {}
    doubts: dict[str, float] = {}  # by way, the same for every stage: their common relative error


class _Extra(NamedTuple):
    """What a way adds to each stage, half the confidence intervals of that, and the error common to all stages."""

    parts: list[float]
    errors: list[float]
    doubt: float = 0.0  # as a fraction of the parts


NOTHING = Seconds(forward=0.0, backward=0.0, early_stop=0.0, options={})
PooledSeconds = list[Seconds]
Samples = Mapping[str, Sequence[StepSample]]


def pooled(samples: Samples, works: Sequence[StageWork]) -> PooledSeconds:
    """Return the seconds of every stage: equal for stages of one kind; the last one also has the time outside of all.

    The shares of kinds come from the marks in the steps, the sums from whole steps: what checkpoints add to all stages
    is the step with `all` less the step without.
    """
    every = samples[EVERY]
    plain = samples.get(PLAIN)  # None if it does not fit in memory
    forward = _each([sample.forward for sample in plain or every], works, median)
    backward = _each([sample.backward for sample in every], works, median)
    whole = samples.get(WHOLE) or plain
    recomputing = {way: taken for way, taken in samples.items() if way not in (WHOLE, PLAIN)}
    extra = {
        way: _extra(taken, plain, plain if way == TOGETHER else whole, _run_by(way, works))
        for way, taken in recomputing.items()
    }
    added = extra[EVERY].parts
    inside = sum(forward) + sum(backward)
    step = median(sample.total for sample in whole or every) - (0.0 if whole else sum(added))
    scale = min(1.0, step / inside) if inside else 1.0
    found = [
        _stage(forward[place] * scale, backward[place] * scale, place, extra) if work.blocks else NOTHING
        for place, work in enumerate(works)
    ]
    outside = max(0.0, step - inside * scale)
    last = found[-1]
    return [*found[:-1], msgspec.structs.replace(last, forward=last.forward + outside)]


def runs(works: Sequence[StageWork]) -> list[list[int]]:
    """Return the runs of two or more stages that feed each other alone, as indices: one checkpoint can hold a run."""
    found: list[list[int]] = [[]]
    for place, work in enumerate(works):
        if not (found[-1] and work.blocks and works[place - 1].feeds_next):
            found.append([])
        if work.blocks:
            found[-1].append(place)
    return [run for run in found if len(run) > 1]


def _run_by(way: str, works: Sequence[StageWork]) -> list[StageWork]:
    """Return the stages that a way recomputes, with empty work in place of the others."""
    if way != TOGETHER:
        return [*works]
    inside = {place for run in runs(works) for place in run}
    return [work if place in inside else StageWork(blocks=()) for place, work in enumerate(works)]


def _stage(forward: float, backward: float, place: int, extra: Mapping[str, _Extra]) -> Seconds:
    every, inner = extra[EVERY], extra.get(TOGETHER)
    saves = {way: (of.parts[place], of.errors[place]) for way, of in extra.items() if way not in (EVERY, TOGETHER)}
    return Seconds(
        forward=forward,
        backward=backward,
        early_stop=every.parts[place],
        error=every.errors[place],
        inner=(inner.parts[place] or None) if inner else None,
        inner_error=inner.errors[place] if inner else 0.0,
        options={save: (forward, backward + more) for save, (more, _) in saves.items()},
        option_errors={save: error for save, (_, error) in saves.items()},
        doubts={way: of.doubt for way, of in extra.items()},
    )


def _extra(
    taken: Sequence[StepSample],
    plain: Sequence[StepSample] | None,
    without: Sequence[StepSample] | None,
    works: Sequence[StageWork],
) -> _Extra:
    """Return what the way of the `taken` steps adds to each stage, scaled so that the sum is the difference of whole
    steps to those `without` it. If there are fewer `taken` than `without`, timing of the way was ended early.
    """
    recompute = [sample.recompute for sample in taken]
    parts = _each(recompute, works, median)
    noise = _each(recompute, works, _noise)
    if plain is None or without is None:
        return _Extra(parts, [part * min(MOST_DOUBT, noise[place]) for place, part in enumerate(parts)])
    longer = [
        tuple(mine - theirs for mine, theirs in zip(sample.forward, other.forward, strict=True))
        for sample, other in zip(taken, plain, strict=False)
    ]
    parts = [part + max(0.0, more) for part, more in zip(parts, _each(longer, works, median), strict=True)]
    inside = sum(parts)
    if not inside:
        return _Extra(parts, [0.0 for _ in parts])
    differences = [sample.total - other.total for sample, other in zip(taken, without, strict=False)]
    factor, doubt = _factor([difference / inside for difference in differences])
    is_whole = len(taken) == len(without) > 1
    doubt = min(MOST_DOUBT, (doubt + _stolen([*taken, *without]) / inside) / factor) if is_whole else MOST_DOUBT
    parts = [part * factor for part in parts]
    return _Extra(parts, [part * min(MOST_DOUBT, doubt + noise[place]) for place, part in enumerate(parts)], doubt)


def _stolen(samples: Sequence[StepSample]) -> float:
    """Return the mean seconds of a step in which its thread had no core; 0 if they are too few to be certain."""
    total, held = sum(sample.total for sample in samples), sum(sample.held or sample.total for sample in samples)
    return (total - held) / len(samples) if held < HELD * total else 0.0


def _factor(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the median ratio of whole-step to summed stage differences, and half its confidence interval.

    Both are shrunk as far as they are noisy, the ratio towards 1.
    """
    low, high = interval(ratios) or (min(ratios), max(ratios))
    noise = (high - low) / 2
    trust = DOUBT**2 / (DOUBT**2 + noise**2)
    return min(max(1 + trust * (median(ratios) - 1), LEAST_FACTOR), MOST_FACTOR), trust * noise


def _each(
    rows: Sequence[Sequence[float]], works: Sequence[StageWork], read: Callable[[list[float]], float]
) -> list[float]:
    """Return what is read of the samples of each stage's kind, as its median; 0 for what runs around the blocks."""
    pools: dict[Hashable, list[float]] = {}
    for place, work in enumerate(works):
        if work.blocks:
            pools.setdefault(work.kind, []).extend(row[place] for row in rows)
    values = {kind: read(pool) for kind, pool in pools.items()}
    return [values[work.kind] if work.blocks else 0.0 for work in works]


def _noise(pool: Sequence[float]) -> float:
    """Return half the median's confidence interval, relative to it; from half the range if samples are too few."""
    middle = median(pool)
    low, high = interval(pool) or (min(pool), max(pool))
    return (high - low) / 2 / middle if middle > 0 else 0.0
