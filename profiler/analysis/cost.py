"""Estimates what a sweep costs before it runs: trials, steps, GPU seconds.

The time of copies, digests and readings of the allocator is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from math import ceil
from typing import NamedTuple

import msgspec

from profiler.core.case import OPERATORS, Case, Trial
from profiler.core.schedule import DDP_SETTLING, is_time_alone
from profiler.core.stats import FIRST_LOOK, MOST_STEPS, SHORTEST, most_seconds, num_least


class Bounds(NamedTuple):
    """The lower and upper bound of a quantity."""

    least: float
    most: float

    def plus(self, other: Bounds) -> Bounds:
        return Bounds(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Bounds:
        return Bounds(self.least * factor, self.most * factor)


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of the step without checkpointing."""

    step_seconds: float
    forward_seconds: float  # the extra time of recomputing everything


class SweepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a schedule, or of the rest of it."""

    num_trials: int
    num_predicted: int  # of these, predictions, which need no device
    num_rehearsed: int  # of these, rehearsals, which need none either
    steps: Bounds  # of the other trials; if their speed is not known, with one step per timed sample
    sampling_seconds: float  # time limit of a round's timed steps, once there are enough; 0 for a fixed number
    gpu_seconds: Bounds | None  # of the trials whose speed is known, summed over ranks; None if there are none
    num_unknown: int  # measured trials whose speed is not known


def cost(trials: Iterable[Trial], speeds: Mapping[Case, Speed], *, start_seconds: float) -> SweepCost:
    """Return the cost of trials, from the predicted speeds of their baselines (by `case.baseline.twin`).

    `start_seconds` is how long a trial takes to start. The time of copies, digests and readings of the allocator is not
    counted.
    """
    planned = list(trials)
    measured = [trial for trial in planned if not trial.case.is_predicted and not trial.case.is_rehearsed]
    asked = [(trial, speeds.get(trial.case.baseline.twin)) for trial in measured]
    start, nothing = Bounds(start_seconds, start_seconds), Bounds(0, 0)
    seconds = [
        start.plus(step_seconds(trial, speed)).times(trial.case.num_ranks)
        for trial, speed in asked
        if speed is not None
    ]
    samplings = [trial.case.sampling for trial in measured if "time" in trial.passes]
    num_predicted = sum(trial.case.is_predicted for trial in planned)
    return SweepCost(
        num_trials=len(planned),
        num_predicted=num_predicted,
        num_rehearsed=len(planned) - len(measured) - num_predicted,
        steps=reduce(Bounds.plus, (num_steps(trial, speed) for trial, speed in asked), nothing),
        sampling_seconds=max((sampling.max_seconds for sampling in samplings if sampling), default=0.0),
        gpu_seconds=reduce(Bounds.plus, seconds, nothing) if seconds else None,
        num_unknown=len(measured) - len(seconds),
    )


def num_steps(trial: Trial, speed: Speed | None = None) -> Bounds:
    """Return the training steps of one rank."""
    timed = [num_timed(trial, seconds) for seconds in (_step_span(trial, speed) if speed else (None,))]
    return _untimed(trial).plus(Bounds(min(bounds.least for bounds in timed), max(bounds.most for bounds in timed)))


def step_seconds(trial: Trial, speed: Speed) -> Bounds:
    """Return the seconds of these steps: each at least as long as the baseline's, and at most a forward longer."""
    fast, slow = _step_span(trial, speed)
    timed = [num_timed(trial, seconds).times(seconds) for seconds in (fast, slow)]
    least, most = _untimed(trial)
    return Bounds(
        least * fast + min(bounds.least for bounds in timed), most * slow + max(bounds.most for bounds in timed)
    )


def num_timed(trial: Trial, seconds: float | None) -> Bounds:
    """Return the number of timed steps if each takes so long, by the rules of `meters.time` and `core.stats`."""
    case = trial.case
    if "time" not in trial.passes:
        return Bounds(0, 0)
    per_sample = 1 if seconds is None else min(MOST_STEPS, max(1, ceil(SHORTEST / seconds)))
    if trial.is_paired and case.has_switch:
        pairs = Bounds(2 * case.samples, 2 * case.samples)
        if case.sampling:
            least, limit = num_least(case.samples, trial.least_pairs), case.sampling.max_samples
            longest = most_seconds(case.sampling, least)
            in_time = limit if seconds is None else 2 * ceil(longest / (seconds * per_sample * 2))
            pairs = Bounds(min(2 * least, limit), min(max(in_time, 4 * least), limit + limit % 2))
        shared = pairs.least // 2 if is_time_alone(trial) else 0  # those without a strategy, shared with others
        return Bounds(pairs.least - shared, pairs.most).times(per_sample)
    if not case.sampling:
        return Bounds(case.samples, case.samples).times(per_sample)
    limit = case.sampling.max_samples
    in_time = limit if seconds is None else min(limit, ceil(case.sampling.max_seconds / (seconds * per_sample)))
    least = case.samples if seconds is None or in_time <= case.samples else max(case.samples, FIRST_LOOK)
    # the first steps may turn out to be warm-up, at most as many as are left
    return Bounds(least, max(in_time, 2 * case.samples)).times(per_sample)


def _untimed(trial: Trial) -> Bounds:
    """Return the steps of the other passes, and those before the timed ones, as `measuring` runs them."""
    case, passes = trial.case, trial.passes
    steps = Bounds(0, 0)
    if "equality" in passes and case.verify != "off":
        # a run has two steps. The baseline runs twice, in another precision also one step each against fp32. Others
        # run once if digests match, else also the baseline, once or twice, and once more from the baseline's weights.
        # The steps of the memory pass serve as one of these runs, if they leave the same results
        own = 4 if case.precision == "fp32" else 6
        shared = 2 if "memory" in passes and not case.ranks else 0
        steps = steps.plus(Bounds(own - shared, own) if case == case.baseline else Bounds(2 - shared, 8))
        if case.ranks and case == case.baseline:
            # against one process with the batches of all ranks, and once more if bits differ
            steps = steps.plus(Bounds(1 + case.ranks, 1 + 2 * case.ranks))
    settling = DDP_SETTLING if (case.parallel or "").startswith("ddp") else 1
    is_paired = trial.is_paired and case.has_switch  # a step without it always warms up
    warmup = max(1, case.warmup) if is_paired else case.warmup
    always = {"flops": 1, "memory": settling + 1, OPERATORS: 2, "time": 1 + warmup}
    number = sum(count for name, count in always.items() if name in passes)
    is_look = is_paired and trial.least_pairs == 1 and case.torch_device == "cpu"  # one step warms up for both
    return steps.plus(Bounds(number - (is_time_alone(trial) or is_look), number))


def _step_span(trial: Trial, speed: Speed) -> tuple[float, float]:
    """Return how long a step takes at least and at most."""
    is_baseline = trial.case == trial.case.baseline
    return speed.step_seconds, speed.step_seconds + (0.0 if is_baseline else speed.forward_seconds)
