"""What a sweep costs before it is run: trials, steps, seconds of a GPU.

What copies, digests and the reading of the allocator take besides is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import msgspec

from profiler.core.case import OPERATORS, Case, Trial
from profiler.core.paired_steps import WITHOUT_SWITCH, most_seconds, num_least
from profiler.core.schedule import DDP_SETTLING, is_time_alone
from profiler.core.stats import FIRST_LOOK, MOST_STEPS, SHORTEST


class Bounds(NamedTuple):
    """The least and the most of something."""

    least: float
    most: float

    def plus(self, other: Bounds) -> Bounds:
        return Bounds(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Bounds:
        return Bounds(self.least * factor, self.most * factor)


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of a setting without checkpointing."""

    step_seconds: float
    forward_seconds: float  # what computing everything once more adds


class SweepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a plan, or of what is left of it."""

    num_trials: int
    num_predicted: int  # of them, which need no device
    num_rehearsed: int  # of them, which need none either
    steps: Bounds  # of the others; where nothing is known of their speed, with one step a timed sample
    sampling_seconds: float  # that the timed steps of a round may take, once there are enough; 0 for a fixed number
    gpu_seconds: Bounds | None  # of the trials of which the speed is known; of every rank its own
    num_unknown: int  # measured trials of which it is not


def cost(trials: Iterable[Trial], speeds: Mapping[Case, Speed], *, start_seconds: float) -> SweepCost:
    """The cost of trials, by the predicted speeds of their baselines (`case.baseline.twin`) and of a trial's start."""
    planned = list(trials)
    measured = [trial for trial in planned if not trial.case.is_predicted and not trial.case.is_rehearsed]
    num_rehearsed = sum(trial.case.is_rehearsed for trial in planned)
    steps, seconds, num_unknown = Bounds(0, 0), Bounds(0, 0), 0
    for trial in measured:
        speed = speeds.get(trial.case.baseline.twin)
        steps = steps.plus(num_steps(trial, speed))
        if speed is None:
            num_unknown += 1
        else:
            begun = Bounds(start_seconds, start_seconds)
            seconds = seconds.plus(begun.plus(step_seconds(trial, speed)).times(trial.case.num_ranks))
    samplings = [trial.case.sampling for trial in measured if "time" in trial.passes]
    return SweepCost(
        num_trials=len(planned),
        num_predicted=len(planned) - len(measured) - num_rehearsed,
        num_rehearsed=num_rehearsed,
        steps=steps,
        sampling_seconds=max((sampling.max_seconds for sampling in samplings if sampling), default=0.0),
        gpu_seconds=seconds if num_unknown < len(measured) else None,
        num_unknown=num_unknown,
    )


def num_steps(trial: Trial, speed: Speed | None = None) -> Bounds:
    """Training steps of one rank."""
    timed = [num_timed(trial, seconds) for seconds in _step_span(trial, speed)]
    return _untimed(trial).plus(Bounds(min(bounds.least for bounds in timed), max(bounds.most for bounds in timed)))


def step_seconds(trial: Trial, speed: Speed) -> Bounds:
    """Seconds that they take: of a strategy the step without checkpointing at least, and one more forward at most."""
    fast, slow = _step_span(trial, speed)
    assert fast is not None
    assert slow is not None
    untimed = _untimed(trial)
    timed = [num_timed(trial, seconds).times(seconds) for seconds in (fast, slow)]
    return Bounds(
        untimed.least * fast + min(bounds.least for bounds in timed),
        untimed.most * slow + max(bounds.most for bounds in timed),
    )


def num_timed(trial: Trial, seconds: float | None) -> Bounds:
    """Steps that are timed where each takes so many seconds, as `meters.time` and `core.stats` take them."""
    case = trial.case
    if "time" not in trial.passes:
        return Bounds(0, 0)
    per_sample = 1 if seconds is None else min(MOST_STEPS, max(1, ceil(SHORTEST / seconds)))
    if trial.is_paired and case.strategy.name not in WITHOUT_SWITCH:
        pairs = _num_paired(trial, seconds, per_sample)
        shared = pairs.least // 2 if is_time_alone(trial) else 0  # with the steps of others, those without a strategy
        return Bounds(pairs.least - shared, pairs.most).times(per_sample)
    if not case.sampling:
        return Bounds(case.samples, case.samples).times(per_sample)
    limit = case.sampling.max_samples
    in_time = limit if seconds is None else min(limit, ceil(case.sampling.max_seconds / (seconds * per_sample)))
    least = case.samples if seconds is None or in_time <= case.samples else max(case.samples, FIRST_LOOK)
    # the first ones may be found to be warm-up, at most as many as are left
    return Bounds(least, max(in_time, 2 * case.samples)).times(per_sample)


def _num_paired(trial: Trial, seconds: float | None, per_sample: int) -> Bounds:
    """Samples with the strategy and without it, as `core.paired_steps` takes them."""
    case = trial.case
    if not case.sampling:
        return Bounds(2 * case.samples, 2 * case.samples)
    limit, pairs = case.sampling.max_samples, num_least(case.samples, trial.least_pairs)
    few, longest = 2 * pairs, most_seconds(case.sampling, pairs)
    in_time = limit if seconds is None else 2 * ceil(longest / (seconds * per_sample * 2))
    return Bounds(min(few, limit), min(max(in_time, 2 * few), limit + limit % 2))


def _untimed(trial: Trial) -> Bounds:
    """The steps of the other passes, and those before the timed ones, as `measuring` runs them."""
    case, passes = trial.case, trial.passes
    steps = Bounds(0, 0)
    if "equality" in passes and case.verify != "off":
        # each run is of two steps: a baseline twice, in another precision also one step of each against fp32;
        # else by digests, or with the baseline twice more, and itself once more from the baseline's weights;
        # the steps of the memory pass are one of these runs, where they leave the same behind
        own = 4 if case.precision == "fp32" else 6
        shared = 2 if "memory" in passes and not case.ranks else 0
        steps = steps.plus(Bounds(own - shared, own) if case == case.baseline else Bounds(2 - shared, 8))
        if case.ranks and case == case.baseline:
            # against one process with all batches, and once more where bits differ
            steps = steps.plus(Bounds(1 + case.ranks, 1 + 2 * case.ranks))
    settling = DDP_SETTLING if (case.parallel or "").startswith("ddp") else 1
    is_paired = trial.is_paired and case.strategy.name not in WITHOUT_SWITCH  # a step without it warms up in any case
    warmup = max(1, case.warmup) if is_paired else case.warmup
    always = {"flops": 1, "memory": settling + 1, OPERATORS: 2, "time": 1 + warmup}
    number = sum(count for name, count in always.items() if name in passes)
    is_look = is_paired and trial.least_pairs == 1 and case.torch_device == "cpu"  # which both warm up for together
    return steps.plus(Bounds(number - (is_time_alone(trial) or is_look), number))


def _step_span(trial: Trial, speed: Speed | None) -> tuple[float | None, float | None]:
    if speed is None:
        return None, None
    is_baseline = trial.case == trial.case.baseline
    return speed.step_seconds, speed.step_seconds + (0.0 if is_baseline else speed.forward_seconds)
