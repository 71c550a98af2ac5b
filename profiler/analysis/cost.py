"""What a sweep costs before it is run: trials, steps, seconds of a GPU. Arithmetic; knows nothing of how it is known.

What copies, digests and the reading of the allocator take besides is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import msgspec

from profiler.core.case import OPERATORS, Case, Trial
from profiler.core.stats.stopping import MOST_STEPS, SHORTEST
from profiler.core.trace_data import DDP_SETTLING_STEPS

FIRST_LOOK = 6  # samples, before which no median is sure


class Span(NamedTuple):
    """The least and the most of something."""

    least: float
    most: float

    def plus(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Span:
        return Span(self.least * factor, self.most * factor)


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of a setting without checkpointing."""

    step_seconds: float
    forward_seconds: float  # what computing everything once more adds


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a plan, or of what is left of it."""

    num_trials: int
    num_predicted: int  # of them, which need no device
    steps: Span  # of the others; where nothing is known of their speed, with one step a timed sample
    sampling_seconds: float  # that the timed steps of a round may take, once there are enough; 0 for a fixed number
    gpu_seconds: Span | None  # of the trials of which the speed is known; of every rank its own
    num_unknown: int  # measured trials of which it is not


def cost(trials: Iterable[Trial], speeds: Mapping[Case, Speed], *, start_seconds: float) -> Cost:
    """The cost of trials, by the predicted speeds of their baselines (`case.baseline.twin`) and of a trial's start."""
    planned = list(trials)
    measured = [trial for trial in planned if not trial.case.is_predicted]
    steps, seconds, num_unknown = Span(0, 0), Span(0, 0), 0
    for trial in measured:
        speed = speeds.get(trial.case.baseline.twin)
        steps = steps.plus(num_steps(trial, speed))
        if speed is None:
            num_unknown += 1
        else:
            begun = Span(start_seconds, start_seconds)
            seconds = seconds.plus(begun.plus(step_seconds(trial, speed)).times(trial.case.num_ranks))
    return Cost(
        num_trials=len(planned),
        num_predicted=len(planned) - len(measured),
        steps=steps,
        sampling_seconds=max((_longest(trial) for trial in measured), default=0.0),
        gpu_seconds=seconds if num_unknown < len(measured) else None,
        num_unknown=num_unknown,
    )


def num_steps(trial: Trial, speed: Speed | None = None) -> Span:
    """Training steps of one rank."""
    timed = [num_timed(trial, seconds) for seconds in _step_span(trial, speed)]
    return _untimed(trial).plus(Span(min(one.least for one in timed), max(one.most for one in timed)))


def step_seconds(trial: Trial, speed: Speed) -> Span:
    """Seconds that they take: of a strategy the step without checkpointing at least, and one more forward at most."""
    fast, slow = _step_span(trial, speed)
    assert fast is not None
    assert slow is not None
    untimed = _untimed(trial)
    timed = [num_timed(trial, seconds).times(seconds) for seconds in (fast, slow)]
    return Span(
        untimed.least * fast + min(one.least for one in timed), untimed.most * slow + max(one.most for one in timed)
    )


def num_timed(trial: Trial, seconds: float | None) -> Span:
    """Steps that are timed where each takes so many seconds, as `meters.time` and `series.stopping` take them."""
    case = trial.case
    if "time" not in trial.passes:
        return Span(0, 0)
    per_sample = 1 if seconds is None else min(MOST_STEPS, max(1, ceil(SHORTEST / seconds)))
    if not case.sampling:
        return Span(case.samples, case.samples).times(per_sample)
    limit = case.sampling.max_samples
    in_time = limit if seconds is None else min(limit, ceil(case.sampling.max_seconds / (seconds * per_sample)))
    least = case.samples if seconds is None or in_time <= case.samples else max(case.samples, FIRST_LOOK)
    # the first ones may be found to be warm-up, at most as many as are left
    return Span(least, max(in_time, 2 * case.samples)).times(per_sample)


def _untimed(trial: Trial) -> Span:
    """The steps of the other passes, and those before the timed ones, as `measuring` runs them."""
    case, passes = trial.case, trial.passes
    found = Span(0, 0)
    if "equality" in passes and case.verify != "off":
        # a baseline twice, in another precision also against fp32; else by digests, or with the baseline twice more
        twice = 2 if case.precision == "fp32" else 4
        found = found.plus(Span(twice, twice) if case == case.baseline else Span(1, 3))
        if case.ranks and case == case.baseline:
            # against one process with all batches, and once more where bits differ
            found = found.plus(Span(1 + case.ranks, 1 + 2 * case.ranks))
    settling = DDP_SETTLING_STEPS if (case.parallel or "").startswith("ddp") else 1
    always = {"flops": 1, "memory": settling + 1, OPERATORS: 2, "time": 1 + case.warmup}
    number = sum(count for name, count in always.items() if name in passes)
    return found.plus(Span(number, number))


def _step_span(trial: Trial, speed: Speed | None) -> tuple[float | None, float | None]:
    if speed is None:
        return None, None
    is_baseline = trial.case == trial.case.baseline
    return speed.step_seconds, speed.step_seconds + (0.0 if is_baseline else speed.forward_seconds)


def _longest(trial: Trial) -> float:
    return trial.case.sampling.max_seconds if trial.case.sampling and "time" in trial.passes else 0.0
