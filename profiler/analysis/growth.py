"""How a quantity grows with another: knows nothing of what they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import linear_regression

import msgspec


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """values = scale * sizes^exponent: 1 is linear, 0.5 the square root."""

    scale: float
    exponent: float

    def at(self, size: float) -> float:
        return float(self.scale * size**self.exponent)


def power(sizes: Sequence[float], values: Sequence[float]) -> Power | None:
    """The power that is nearest, by least squares on logarithms.

    None for fewer than three points, where a power would fit anything, and where the sizes are all the same.
    """
    points = [(log(size), log(value)) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    if len(points) < 3 or len({size for size, _ in points}) < 2:
        return None
    line = linear_regression([size for size, _ in points], [value for _, value in points])
    return Power(scale=exp(line.intercept), exponent=line.slope)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """That of the nearest power; None where there is none."""
    found = power(sizes, values)
    return None if found is None else found.exponent
