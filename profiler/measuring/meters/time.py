"""Reads the seconds of training steps, raw."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core.record import Conditions
from profiler.core.stats import MOST_STEPS, SHORTEST, Sampling, is_look, num_warmup, stop_reason
from profiler.measuring.devices import Device
from profiler.measuring.ranks import ALONE, Group
from profiler.training.workload import Step

Spans = list[tuple[str, float]]

TICKS = 1000  # of the device's clock, that a sample has at least
MARGIN = 1.2  # times the slowest step: what the next one may take


def read(
    device: Device,
    step: Step,
    *,
    warmup: int,
    samples: int,
    sampling: Sampling | UnsetType = UNSET,
    until: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    group: Group = ALONE,
) -> dict[str, Any]:
    """Returns the time fields of Readings: a settling step, the warm-up, then one sample a step. No sample is dropped.

    Takes exactly `samples`; where there is a `sampling` at least so many, until it says to stop, and marks those that
    it finds to be warm-up. A step too fast for the device's clock is run several times a sample. No step begins that
    would not end before the clock says `until`, but for the first of the samples. The ranks of a group begin each
    sample together, take that of the slowest, and end when the first of them says so.
    """

    def is_late(seconds: float) -> bool:
        return until is not None and group.agree(clock() + MARGIN * seconds > until)

    def sample(times: int = 1, launches: list[float] | None = None) -> Spans:
        mine = _sample(device, step, group, times=times, launches=[] if launches is None else launches, clock=clock)
        return group.largest(mine, lambda spans: _steps([spans])[0])

    first = _warmed(sample, warmup, lambda slowest: is_late(2 * slowest))
    times = _steps_per_sample(first[-1], max(SHORTEST, TICKS * device.tick_seconds))
    launches: list[float] = []
    began = _spent_elsewhere(group)
    timed, stopped, conditions = _until_stopped(
        lambda: sample(times, launches),
        lambda: _conditions(device, group, began),
        samples=samples,
        sampling=sampling,
        is_late=lambda slowest: is_late(times * slowest),
    )
    num_settling = num_warmup(_steps(timed)) if sampling else 0
    steady = timed[num_settling:]
    return {
        "warmup_seconds": _steps(first + timed[:num_settling]),
        "forward_seconds": tuple(_sum("forward", spans) for spans in steady),
        "backward_seconds": tuple(_sum("backward", spans) for spans in steady),
        "optimizer_seconds": tuple(_sum("optimizer", spans) for spans in steady),
        "step_seconds": _steps(steady),
        "steps_per_sample": times,
        "host_share": _host_share(launches, _steps(timed), times) if device.is_asynchronous else None,
        "stopped": stopped,
        "conditions": conditions,
    }


def _warmed(sample: Callable[[], Spans], warmup: int, is_late: Callable[[float], bool]) -> list[Spans]:
    """Returns the settling step, and as many warm-up steps as leave time for a sample."""
    first = [sample()]
    while len(first) <= warmup and not is_late(max(_steps(first))):
        first.append(sample())
    return first


def _steps_per_sample(last: Spans, least: float) -> int:
    """Returns how many steps make a sample of at least `least` seconds, judged by the last step of the warm-up."""
    (seconds,) = _steps([last])
    return min(MOST_STEPS, max(1, ceil(least / seconds))) if seconds else MOST_STEPS


def _until_stopped(
    take: Callable[[], Spans],
    look: Callable[[], Conditions],
    *,
    samples: int,
    sampling: Sampling | UnsetType,
    is_late: Callable[[float], bool],
) -> tuple[list[Spans], str, tuple[Conditions, ...]]:
    """The samples, why there are no more, and the conditions at the start, at every look and at the end."""
    timed: list[Spans] = []
    conditions = [look()]
    stopped: str | None = None
    while stopped is None:
        timed.append(take())
        if sampling:
            stopped = stop_reason(_steps(timed), sampling, least=samples)
        elif len(timed) >= samples:
            stopped = "samples"
        if not stopped and is_late(max(_steps(timed))):
            stopped = "limit"
        if stopped or is_look(len(timed)):
            conditions.append(look())
    return timed, stopped, tuple(conditions)


def _conditions(device: Device, group: Group, began: float) -> Conditions:
    """Returns the conditions of this rank's device; CPU time of the other ranks does not count as others'."""
    conditions, spent = device.conditions(), _spent_elsewhere(group) - began
    if not spent or conditions.others_seconds is None:
        return conditions
    return msgspec.structs.replace(conditions, others_seconds=max(0.0, conditions.others_seconds - spent))


def _spent_elsewhere(group: Group) -> float:
    """Seconds of the CPU that the other ranks have used."""
    by_rank = group.gather(time.process_time())
    return sum(by_rank) - by_rank[group.rank]


def _steps(timed: list[Spans]) -> tuple[float, ...]:
    return tuple(sum(seconds for _, seconds in spans) for spans in timed)


def _host_share(launches: list[float], steps: tuple[float, ...], times: int) -> float | None:
    """Returns the share of a step that the host spends launching it, the median over the samples."""
    shares = [seconds / times / step for seconds, step in zip(launches, steps, strict=True) if step]
    return min(1.0, median(shares)) if shares else None


def _sample(
    device: Device, step: Step, group: Group, *, times: int, launches: list[float], clock: Callable[[], float]
) -> Spans:
    """Returns the phases of one step, or the mean of several run back to back.

    `launches` gets the seconds until the host had asked for all of them.
    """
    phases: list[str] = []
    device.synchronize()
    group.wait()
    stopwatch = device.stopwatch()

    def mark(phase: str) -> None:
        phases.append(phase)
        stopwatch.mark()

    began = clock()
    for _ in range(times):
        step(mark)
    launches.append(clock() - began)
    spans = zip(phases, stopwatch.seconds(), strict=False)  # the last mark, "end", begins no span
    return [(phase, seconds / times) for phase, seconds in spans if phase != "end"]


def _sum(phase: str, spans: Spans) -> float:
    return sum(seconds for name, seconds in spans if name == phase)
