"""Reads the seconds of training steps, as raw samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import stats
from profiler.core.errors import Unsupported
from profiler.core.record import PHASES, Conditions
from profiler.measuring.devices import Device
from profiler.measuring.ranks import ALONE, Group
from profiler.training.workload import Step

Switch = Callable[[bool], None]

TICKS = 1000  # of the device's clock: the least length of a sample
Plain = Callable[[int], list["Sample"]]  # runs a step without the strategy; no sample if that fails
LEAST_CYCLES = 4  # of several strategies, which must fit in the time limit: one warm-up and three timed
MARGIN = 1.2  # the next step is assumed to take this many times the slowest one


class Sample(NamedTuple):
    """One step, or the mean of several run back to back."""

    phases: Mapping[str, float]  # seconds
    processor_seconds: float  # CPU time of this thread
    launch_seconds: float  # until the host had launched all of it

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


class _Series:
    """The steps of one strategy and, if they alternate, as many without it."""

    def __init__(self, switch: Switch | None) -> None:
        self.switch = switch
        self.first: list[Sample] = []  # warm-up steps, before those that are timed
        self.plain_first: list[Sample] | None = None  # without it; [] if that did not fit or failed, None if not run
        self.own: list[Sample] = []
        self.plain: list[Sample] = []
        self.is_late = False  # whether there is no time for pairs of steps with and without it
        self.stopped: str | None = None
        self.conditions: tuple[Conditions, ...] = ()

    def take(self, sample: Callable[[], Sample]) -> Sample:
        """Run a step with the strategy; one that can be switched off is off before and after."""
        if self.switch is None:
            return sample()
        self.switch(True)
        try:
            return sample()
        finally:
            self.switch(False)

    def settle(
        self, sample: Callable[[], Sample], plain: Plain, is_late: Callable[[float], bool], *, is_brief: bool
    ) -> None:
        """Run the first step with the strategy, unless brief, and the first without it, if it can be switched off."""
        if is_brief and self.switch is not None:
            self.plain_first = plain(1)
            if self.plain_first:
                self.is_late = is_late(self.plain_first[0].seconds)
                return
        self.first = [self.take(sample)]
        if self.plain_first is None and self.switch is not None and not is_late(self.first[0].seconds):
            self.plain_first = plain(1)

    def warm_up(self, sample: Callable[[], Sample], warmup: int, is_late: Callable[[float], bool]) -> None:
        """Run `warmup` more steps as long as they leave time for a sample; a step without the strategy counts."""
        if self.plain_first is not None:
            warmup += -1 if self.plain_first else 1  # if it did not fit, the device's cache was emptied
        while warmup > 0 and not is_late(max(_steps([*self.first, *(self.plain_first or ())]))):
            self.first.append(self.take(sample))
            warmup -= 1

    def stop_reason(
        self, sampling: stats.Sampling | UnsetType, *, samples: int, least_pairs: int | UnsetType
    ) -> str | None:
        """Return why sampling of this strategy ends here; None to go on."""
        own, plain = _steps(self.own), _steps(self.plain)
        if not sampling:
            return "samples" if len(own) >= samples else None
        least = stats.num_least(samples, least_pairs) if plain else samples
        return stats.stop_reason(own, sampling, least=least, without=plain)

    def readings(self, device: Device, times: int, *, finds_warmup: bool, waits_for_ranks: bool) -> dict[str, Any]:
        """Return the time fields of Readings; timed steps that turn out to be warm-up are moved to the warm-up."""
        own, plain = _steps(self.own), _steps(self.plain)
        settling = (stats.num_warmup_pairs(own, plain) if plain else stats.num_warmup(own)) if finds_warmup else 0
        steady = self.own[settling:]
        plain_first = None if self.plain_first is None else _steps(self.plain_first) + plain[:settling]
        shares = [sample.launch_seconds / sample.seconds for sample in self.own if sample.seconds]
        is_known = bool(plain) and not device.is_asynchronous and not waits_for_ranks
        held = [tuple(one.processor_seconds for one in timed[settling:]) for timed in (self.own, self.plain)]
        return {
            "warmup_seconds": _steps(self.first) + own[:settling],
            **{f"{phase}_seconds": tuple(sample.phases.get(phase, 0) for sample in steady) for phase in PHASES},
            "step_seconds": own[settling:],
            "plain_step_seconds": plain[settling:] if plain else None,
            "plain_warmup_seconds": plain_first,
            "processor_seconds": None if device.is_asynchronous else held[0],
            "plain_processor_seconds": held[1] if is_known else UNSET,
            "steps_per_sample": times,
            "host_share": min(1.0, median(shares)) if device.is_asynchronous and shares else None,
            "stopped": self.stopped,
            "conditions": self.conditions,
        }


def read(
    device: Device,
    step: Step,
    switches: Sequence[Switch | None],
    group: Group = ALONE,
    *,
    warmup: int,
    samples: int,
    sampling: stats.Sampling | UnsetType = UNSET,
    least_pairs: int | UnsetType = UNSET,
    round_number: int = 1,
    until: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:
    """Time the strategies of one model in turn; return the time fields of Readings of each. No sample is dropped.

    Strategies are switched off on entry and on return; they share the steps without one, with which each of their
    samples is paired. None is a single strategy that has no switch, or is not to be paired. Before the samples, a
    settling step and `warmup` more steps are run, the first of them without a strategy. In a first look at one strategy
    on a CPU, where other passes have run steps before, the settling step is the one without it: it takes the most
    memory, which both steps of the pair then reuse. Takes exactly `samples` of each; with a `sampling`, at least that
    many steps with and without it together, or `least_pairs` pairs, until the sampling says to stop, and detects warm-
    up among them. A step too short for the device's clock is run several times per sample. Except for the first sample,
    no step begins that might end after `until` on the `clock`. `round_number` seeds the order of steps. The ranks of a
    group begin each sample together, record the slowest rank's, and end when the first rank says so.

    Raises whatever a step raises; of several strategies also if the step without one does not fit in memory, and
    Unsupported if the steps take too long for all to be timed before `until`.
    """

    def is_late(seconds: float) -> bool:
        return until is not None and group.agree(clock() + MARGIN * seconds > until)

    def sample(times: int = 1) -> Sample:
        return group.largest(_sample(device, step, group, times=times, clock=clock), lambda sample: sample.seconds)

    def plain(times: int) -> list[Sample]:
        try:
            return [sample(times)]
        except Exception:  # the user's model may raise anything, as where it does not fit in memory
            if is_shared or group.size > 1:  # the other ranks wait for this one
                raise
        device.release()  # after the handler, whose traceback holds tensors
        return []

    series = [_Series(switch) for switch in switches]
    is_shared = len(series) > 1
    is_brief = least_pairs == 1 and not device.is_asynchronous and not is_shared
    least_room = LEAST_CYCLES * (len(series) + 1) if is_shared else 3  # steps
    for one in series:
        if one is series[0]:
            one.settle(sample, plain, lambda seconds: is_late(least_room * seconds), is_brief=is_brief)
            if is_shared and one.plain_first is None:
                raise Unsupported("the steps of several strategies take too long to share a process")
        else:
            one.first, one.plain_first = [one.take(sample)], series[0].plain_first
        one.warm_up(sample, warmup, lambda slowest: is_late(2 * slowest))
    fastest = min(sample.seconds for one in series for sample in (*one.first[-1:], *(one.plain_first or ())))
    least = max(stats.SHORTEST, TICKS * device.tick_seconds)  # seconds of a sample
    times = min(stats.MOST_STEPS, max(1, ceil(least / fastest))) if fastest else stats.MOST_STEPS
    began = _spent_elsewhere(group)
    conditions = [_conditions(device, group, began)]
    cycles: list[float] = []
    while timed := [one for one in series if one.stopped is None]:
        order = stats.step_order(len(cycles), len(timed), round_number=round_number)
        cycles.append(_run_cycle(timed, partial(sample, times), order, partial(plain, times)))
        reasons = [one.stop_reason(sampling, samples=samples, least_pairs=least_pairs) for one in timed]
        is_over = None in reasons and is_late(times * max(cycles))
        waits = bool(sampling and sampling.ends_together) and None in reasons and not is_over
        if is_over or any(reasons) or (len(cycles) >= stats.FIRST_LOOK and stats.is_look(len(cycles))):
            conditions.append(_conditions(device, group, began))
        for one, reason in zip(timed, reasons, strict=True):
            one.stopped = None if waits else reason or ("limit" if is_over else None)
            one.conditions = tuple(conditions)
    return [one.readings(device, times, finds_warmup=bool(sampling), waits_for_ranks=group.size > 1) for one in series]


def _run_cycle(
    timed: list[_Series], sample: Callable[[], Sample], order: list[int], plain: Callable[[], list[Sample]]
) -> float:
    """Run a step of each strategy, and one without until that fails; return the sum of their seconds."""
    is_paired = bool(timed[0].plain_first) and not timed[0].is_late
    taken: dict[int, Sample] = {}
    for place in order:
        if place:
            taken[place] = timed[place - 1].take(sample)
        elif is_paired:
            taken.update((0, one) for one in plain())
    for place, one in enumerate(timed, start=1):
        one.own.append(taken[place])
        if 0 in taken:
            one.plain.append(taken[0])
        elif is_paired:
            one.plain, one.plain_first = [], []
    return sum(sample.seconds for sample in taken.values())


def _conditions(device: Device, group: Group, began: float) -> Conditions:
    """Return the conditions of this rank's device; other ranks' CPU time does not count as other processes'."""
    conditions, spent = device.conditions(), _spent_elsewhere(group) - began
    if not spent or conditions.others_seconds is None:
        return conditions
    return msgspec.structs.replace(conditions, others_seconds=max(0.0, conditions.others_seconds - spent))


def _spent_elsewhere(group: Group) -> float:
    """Return the CPU seconds that the other ranks have used."""
    by_rank = group.gather(time.process_time())
    return sum(by_rank) - by_rank[group.rank]


def _steps(timed: list[Sample]) -> tuple[float, ...]:
    return tuple(sample.seconds for sample in timed)


def _sample(device: Device, step: Step, group: Group, *, times: int, clock: Callable[[], float]) -> Sample:
    """Run and time one step, or several back to back, of which the sample is the mean."""
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
    taken: dict[str, float] = {}
    for phase, seconds in spans:
        if phase != "end":
            taken[phase] = taken.get(phase, 0) + seconds / times
    return Sample(taken, worked / times, launched / times)
