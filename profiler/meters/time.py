"""Seconds of training steps, raw: knows nothing of cases or strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType

from profiler.devices import Conditions, Device
from profiler.series.stopping import Sampling, is_look, reason
from profiler.series.warmup import num_warmup

Step = Callable[[Callable[[str], None]], Any]
Spans = list[tuple[str, float]]


def read(
    device: Device, step: Step, *, warmup: int, samples: int, sampling: Sampling | UnsetType = UNSET
) -> dict[str, Any]:
    """The time fields of Readings: settle with one full step, warm up, then one sample a step. No sample is dropped.

    Takes exactly `samples`; where there is a `sampling` at least so many, until it says to stop, and marks those that
    it finds to be warm-up.
    """
    first = [_sample(device, step) for _ in range(1 + warmup)]
    timed, stopped, conditions = _until_stopped(device, step, samples=samples, sampling=sampling)
    found = num_warmup(_steps(timed)) if sampling else 0
    steady = timed[found:]
    return {
        "warmup_seconds": _steps(first + timed[:found]),
        "forward_seconds": tuple(_sum("forward", spans) for spans in steady),
        "backward_seconds": tuple(_sum("backward", spans) for spans in steady),
        "optimizer_seconds": tuple(_sum("optimizer", spans) for spans in steady),
        "step_seconds": _steps(steady),
        "stopped": stopped,
        "conditions": conditions,
    }


def _until_stopped(
    device: Device, step: Step, *, samples: int, sampling: Sampling | UnsetType
) -> tuple[list[Spans], str, tuple[Conditions, ...]]:
    """The samples, why there are no more, and the conditions at the start, at every look and at the end."""
    timed: list[Spans] = []
    conditions = [device.conditions()]
    stopped: str | None = None
    while stopped is None:
        timed.append(_sample(device, step))
        if sampling:
            stopped = reason(_steps(timed), sampling, least=samples)
        elif len(timed) >= samples:
            stopped = "samples"
        if stopped or is_look(len(timed)):
            conditions.append(device.conditions())
    return timed, stopped, tuple(conditions)


def _steps(timed: list[Spans]) -> tuple[float, ...]:
    return tuple(sum(seconds for _, seconds in spans) for spans in timed)


def _sample(device: Device, step: Step) -> Spans:
    phases: list[str] = []
    device.synchronize()
    stopwatch = device.stopwatch()

    def mark(phase: str) -> None:
        phases.append(phase)
        stopwatch.mark()

    step(mark)
    return list(zip(phases, stopwatch.seconds(), strict=False))  # the last mark, "end", begins no span


def _sum(phase: str, spans: Spans) -> float:
    return sum(seconds for name, seconds in spans if name == phase)
