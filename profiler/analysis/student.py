"""Student's t distribution: knows nothing of times or of rows.

SciPy has it, and takes longer to import than a whole comparison takes; tests hold the two against each other.
"""

from __future__ import annotations

from functools import cache
from math import cos, exp, floor, log, pi, sin, sqrt, tan

HALVINGS = 60  # of a right angle: to the last digit of a float


def quantile(confidence: float, freedom: float) -> float:
    """The t that a value stays within, above and below zero, with this probability; freedom is at least 1.

    Between whole degrees of freedom its logarithm is interpolated in 1 / freedom: within 1 % of it from 2 on, and
    within 4 % below.
    """
    below = floor(freedom)
    low, high = (log(_of_whole(confidence, whole)) for whole in (below, below + 1))
    share = (1 / below - 1 / freedom) * below * (below + 1)
    return exp(low + share * (high - low))


@cache
def _of_whole(confidence: float, freedom: int) -> float:
    least, most = 0.0, pi / 2
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if _within(middle, freedom) < confidence else (least, middle)
    return tan((least + most) / 2) * sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= tan(angle) sqrt(freedom)): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    if freedom == 1:
        return 2 * angle / pi
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term
    for place in range(2 + odd, freedom - 1, 2):
        term *= (place - 1) / place * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
