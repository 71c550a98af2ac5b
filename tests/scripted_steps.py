"""A device whose steps take the seconds that a test says."""

from __future__ import annotations

from profiler.core.record import Conditions


class Scripted:
    """A device on which every step takes what is written down, half of it forward and half backward."""

    tick_seconds = 1e-9
    is_asynchronous = False

    def __init__(self, seconds: list[float]) -> None:
        self.left = list(seconds)
        self.num_read = 0

    def synchronize(self) -> None: ...

    def stopwatch(self) -> Scripted:
        return self

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        taken = self.left.pop(0)
        return [taken / 2, taken / 2]

    def conditions(self) -> Conditions:
        self.num_read += 1
        return Conditions(at_seconds=float(self.num_read))


def step(mark):
    for phase in ("forward", "backward", "end"):
        mark(phase)
