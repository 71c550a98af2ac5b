"""Reads the seconds of training steps, raw."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec import UNSET, UnsetType

from profiler.core import paired_steps
from profiler.core.paired_steps import num_warmup_pairs
from profiler.core.record import Conditions
from profiler.core.stats import MOST_STEPS, SHORTEST, Sampling, is_look, num_warmup, stop_reason
from profiler.measuring.devices import Device
from profiler.measuring.ranks import ALONE, Group
from profiler.training.workload import Step

Spans = list[tuple[str, float]]
Switch = Callable[[bool], None]

TICKS = 1000  # of the device's clock, that a sample has at least
MARGIN = 1.2  # times the slowest step: what the next one may take


class Sample(NamedTuple):
    """One step, or the mean of several run back to back."""

    spans: Spans
    processor_seconds: float  # in which this thread had a core
    launch_seconds: float  # until the host had asked for all of it

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.spans)


class Pair(NamedTuple):
    """A step with the strategy, and one without it where they alternate."""

    own: Sample
    plain: Sample | None

    @property
    def seconds(self) -> float:
        return self.own.seconds + (self.plain.seconds if self.plain else 0.0)


def read(  # noqa: PLR0913  a clock, a group, a switch and a limit, each of which most callers leave
    device: Device,
    step: Step,
    *,
    warmup: int,
    samples: int,
    sampling: Sampling | UnsetType = UNSET,
    switch: Switch | None = None,
    until: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    group: Group = ALONE,
) -> dict[str, Any]:
    """Returns the time fields of Readings: a settling step, the warm-up, then one sample a step. No sample is dropped.

    Takes exactly `samples`; where there is a `sampling` at least so many, until it says to stop, and marks those that
    it finds to be warm-up. With a `switch`, each sample has a neighbour without the strategy, unless that has no room.
    A step too fast for the device's clock is run several times a sample. No step begins that would not end before the
    clock says `until`, but for the first of the samples. The ranks of a group begin each sample together, take that of
    the slowest, and end when the first of them says so.
    """

    def is_late(seconds: float) -> bool:
        return until is not None and group.agree(clock() + MARGIN * seconds > until)

    def sample(times: int = 1) -> Sample:
        return group.largest(_sample(device, step, group, times=times, clock=clock), lambda sample: sample.seconds)

    first = _warmed(sample, warmup, lambda slowest: is_late(2 * slowest))
    plain = _warmed_without(switch, sample, device) if switch and not is_late(3 * first[-1].seconds) else None
    if plain == []:
        first.append(sample())  # what the device had kept for it was let go
    fastest = min(sample.seconds for sample in (first[-1], *(plain or ())))
    times = _steps_per_sample(fastest, max(SHORTEST, TICKS * device.tick_seconds))
    began = _spent_elsewhere(group)
    timed, stopped, conditions = _until_stopped(
        _in_turn(lambda: sample(times), switch if plain else None),
        lambda: _conditions(device, group, began),
        samples=samples,
        sampling=sampling,
        is_late=lambda slowest: is_late(times * slowest),
    )
    own, others = [pair.own for pair in timed], [pair.plain for pair in timed if pair.plain]
    settling = _num_settling(own, others) if sampling else 0
    steady = own[settling:]
    return {
        "warmup_seconds": _steps(first + own[:settling]),
        "forward_seconds": tuple(_sum("forward", sample) for sample in steady),
        "backward_seconds": tuple(_sum("backward", sample) for sample in steady),
        "optimizer_seconds": tuple(_sum("optimizer", sample) for sample in steady),
        "step_seconds": _steps(steady),
        "plain_step_seconds": _steps(others[settling:]) if plain else None,
        "plain_warmup_seconds": None if plain is None else _steps(plain + others[:settling]),
        "processor_seconds": None if device.is_asynchronous else tuple(sample.processor_seconds for sample in steady),
        "steps_per_sample": times,
        "host_share": _host_share(own) if device.is_asynchronous else None,
        "stopped": stopped,
        "conditions": conditions,
    }


def _warmed(sample: Callable[[], Sample], warmup: int, is_late: Callable[[float], bool]) -> list[Sample]:
    """Returns the settling step, and as many warm-up steps as leave time for a sample."""
    first = [sample()]
    while len(first) <= warmup and not is_late(max(_steps(first))):
        first.append(sample())
    return first


def _warmed_without(switch: Switch, sample: Callable[[], Sample], device: Device) -> list[Sample]:
    """Returns the first step without the strategy; none where it has no room."""
    switch(False)
    try:
        return [sample()]
    except torch.OutOfMemoryError:
        pass  # what the traceback holds must be let go before anything is released
    finally:
        switch(True)
    device.release()
    return []


def _in_turn(sample: Callable[[], Sample], switch: Switch | None) -> Callable[[int], Pair]:
    """Returns what takes the n-th pair, from 0, in the order that `paired_steps` says."""

    def without() -> Sample:
        assert switch is not None, "only where it can be switched off"
        switch(False)
        try:
            return sample()
        finally:
            switch(True)

    def take(number: int) -> Pair:
        if switch is None:
            return Pair(sample(), None)
        if not paired_steps.is_plain_first(number):
            return Pair(sample(), without())
        plain = without()
        return Pair(sample(), plain)

    return take


def _num_settling(own: list[Sample], plain: list[Sample]) -> int:
    return num_warmup_pairs(_steps(own), _steps(plain)) if plain else num_warmup(_steps(own))


def _steps_per_sample(seconds: float, least: float) -> int:
    """Returns how many steps make a sample of at least `least` seconds, where one takes so many."""
    return min(MOST_STEPS, max(1, ceil(least / seconds))) if seconds else MOST_STEPS


def _until_stopped(
    take: Callable[[int], Pair],
    look: Callable[[], Conditions],
    *,
    samples: int,
    sampling: Sampling | UnsetType,
    is_late: Callable[[float], bool],
) -> tuple[list[Pair], str, tuple[Conditions, ...]]:
    """The pairs, why there are no more, and the conditions at the start, at every look and at the end."""
    timed: list[Pair] = []
    conditions = [look()]
    stopped: str | None = None
    while stopped is None:
        timed.append(take(len(timed)))
        if sampling:
            stopped = _stop_reason(timed, sampling, least=samples)
        elif len(timed) >= samples:
            stopped = "samples"
        if not stopped and is_late(max(pair.seconds for pair in timed)):
            stopped = "limit"
        if stopped or is_look(len(timed)):
            conditions.append(look())
    return timed, stopped, tuple(conditions)


def _stop_reason(timed: list[Pair], sampling: Sampling, *, least: int) -> str | None:
    own, plain = _steps([pair.own for pair in timed]), _steps([pair.plain for pair in timed if pair.plain])
    if plain:
        return paired_steps.stop_reason(own, plain, sampling, least=least)
    return stop_reason(own, sampling, least=least)


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


def _steps(timed: list[Sample]) -> tuple[float, ...]:
    return tuple(sample.seconds for sample in timed)


def _host_share(timed: list[Sample]) -> float | None:
    """Returns the share of a step that the host spends launching it, the median over the samples."""
    shares = [sample.launch_seconds / sample.seconds for sample in timed if sample.seconds]
    return min(1.0, median(shares)) if shares else None


def _sample(device: Device, step: Step, group: Group, *, times: int, clock: Callable[[], float]) -> Sample:
    """Returns one step, or the mean of several run back to back."""
    phases: list[str] = []
    device.synchronize()
    group.wait()
    stopwatch = device.stopwatch()

    def mark(phase: str) -> None:
        phases.append(phase)
        stopwatch.mark()

    began, on_core = clock(), time.thread_time()
    for _ in range(times):
        step(mark)
    launched, worked = clock() - began, time.thread_time() - on_core
    spans = zip(phases, stopwatch.seconds(), strict=False)  # the last mark, "end", begins no span
    steps = [(phase, seconds / times) for phase, seconds in spans if phase != "end"]
    return Sample(steps, worked / times, launched / times)


def _sum(phase: str, sample: Sample) -> float:
    return sum(seconds for name, seconds in sample.spans if name == phase)
