"""Seconds of training steps, raw: knows nothing of cases or strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiler.devices import Device

Step = Callable[[Callable[[str], None]], Any]


def read(device: Device, step: Step, *, warmup: int, samples: int) -> dict[str, Any]:
    """The time fields of Readings: settle with one full step, warm up, then one sample a step. No sample is dropped."""
    for _ in range(1 + warmup):
        step(lambda phase: None)
    timed = [_sample(device, step) for _ in range(samples)]
    return {
        "forward_seconds": tuple(_sum("forward", spans) for spans in timed),
        "backward_seconds": tuple(_sum("backward", spans) for spans in timed),
        "optimizer_seconds": tuple(_sum("optimizer", spans) for spans in timed),
        "step_seconds": tuple(sum(seconds for _, seconds in spans) for spans in timed),
    }


def _sample(device: Device, step: Step) -> list[tuple[str, float]]:
    phases: list[str] = []
    device.synchronize()
    stopwatch = device.stopwatch()

    def mark(phase: str) -> None:
        phases.append(phase)
        stopwatch.mark()

    step(mark)
    return list(zip(phases, stopwatch.seconds(), strict=False))  # the last mark, "end", begins no span


def _sum(phase: str, spans: list[tuple[str, float]]) -> float:
    return sum(seconds for name, seconds in spans if name == phase)
