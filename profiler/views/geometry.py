"""Numbers -> places along an axis, with ticks that are round. Knows nothing of what is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10

import msgspec

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One mark of an axis."""

    at: float
    text: str


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of numbers laid over a stretch of a picture; `start` may be beyond `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a number is, to a hundredth."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, *, most: int = 5) -> tuple[Tick, ...]:
        """At most so many round numbers within."""
        step = _step((self.high - self.low) / most)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return tuple(Tick(at=self.at(number * step), text=f"{number * step:,g}") for number in range(first, last + 1))


def around(values: Iterable[float], *, start: float, end: float, from_zero: bool = False) -> Scale:
    """A scale with all of these numbers on it; where they are all one, it lies in the middle or at the end."""
    known = list(values)
    low, high = (0.0 if from_zero else min(known)), max(known)
    if low == high:
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if high else (0.0, 1.0)
    return Scale(low=low, high=high, start=start, end=end)


def _step(least: float) -> float:
    """The smallest round number that is as large."""
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in STEPS if step * power >= least * (1 - 1e-9))
