"""Clocks that jump, steps that are too fast or too slow for them, and times that nobody can be sure of."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, pairwise

import pytest

from profiler.core.stats import MOST_STEPS
from profiler.measuring.meters import time as timing
from tests.conftest import measured
from tests.scripted_steps import Scripted

YEAR = 365 * 24 * 3600.0


@pytest.mark.slow
def test_fault_50_no_duration_knows_of_the_wall_clock(monkeypatch):
    """Each look at the wall clock finds it a year earlier; the other clocks go on."""
    wall = count(1.8e9, -YEAR)
    monkeypatch.setattr(time, "time", lambda: next(wall))

    found = measured("mlp", "none", passes=("memory", "time"), samples=3, warmup=1)

    seconds = (*found.readings.step_seconds, *found.readings.warmup_seconds, *found.stage_seconds.values())
    assert len(seconds) == 3 + 1 + 3
    assert all(0 <= one < YEAR for one in (*seconds, *(one.at_seconds for one in found.readings.conditions)))


class Ticking(Scripted):
    """A device on which a step takes `seconds`, and whose clock tells whole ticks alone."""

    def __init__(self, *, seconds: float, tick: float) -> None:
        super().__init__([])
        self.tick_seconds, self._step, self.num_steps = tick, seconds, 0

    def stopwatch(self) -> Ticking:
        self._marks: list[float] = []
        return self

    def mark(self) -> None:
        self._marks.append(self.num_steps * self._step // self.tick_seconds * self.tick_seconds)

    def run(self, mark: Callable[[str], None]) -> None:
        mark("forward")
        self.num_steps += 1
        mark("end")

    def seconds(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self._marks)]


@pytest.mark.parametrize(
    ("seconds", "tick", "times"),
    [(2e-3, 1e-9, 1), (0.9e-3, 1e-9, 2), (1e-4, 1e-9, 10), (0.01, 1e-3, 100)],  # the last: a thousand ticks
)
def test_fault_51_fast_steps_are_taken_together_until_a_sample_has_a_millisecond(seconds, tick, times):
    device = Ticking(seconds=seconds, tick=tick)

    (found,) = timing.read(device, device.run, [None], warmup=1, samples=3)

    assert found["steps_per_sample"] == pytest.approx(times, abs=max(1, times / 10))
    assert found["step_seconds"] == pytest.approx((seconds,) * 3, rel=0.02)
    assert found["step_seconds"] == found["forward_seconds"]
    assert device.num_steps == 2 + 3 * found["steps_per_sample"]
    still = Ticking(seconds=1e-5, tick=1e-2)  # a timer that has not moved at all
    assert timing.read(still, still.run, [None], warmup=1, samples=2)[0]["steps_per_sample"] == MOST_STEPS
