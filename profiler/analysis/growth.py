"""How a quantity grows with another: knows nothing of what they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import linear_regression


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The b of values = a * sizes^b, by least squares on logarithms; 1 is linear, 0.5 the square root.

    None for fewer than three points, where a power would fit anything, and where the sizes are all the same.
    """
    points = [(log(size), log(value)) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    if len(points) < 3 or len({size for size, _ in points}) < 2:
        return None
    return linear_regression([size for size, _ in points], [value for _, value in points]).slope
