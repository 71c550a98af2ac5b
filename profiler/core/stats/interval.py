"""How sure a median is, from its samples alone: knows nothing of what they are samples of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, floor, sqrt
from statistics import NormalDist, median

LEVEL = 0.95  # how often the interval holds the median
EXACT = 1000  # samples from which on the binomial distribution is as good as normal


def interval(samples: Sequence[float], *, level: float = LEVEL) -> tuple[float, float] | None:
    """The narrowest pair of samples, equally far from both ends of their order, that holds the median so often.

    It holds whatever the samples are distributed as. None where even the smallest and the largest are no such pair: at
    95 % for fewer than six. Source: Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2.
    """
    rank = _rank(len(samples), level)
    if not rank:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def uncertainty(samples: Sequence[float], *, level: float = LEVEL) -> float | None:
    """How far the interval reaches from the median at most, as a fraction of it; None where there is no interval."""
    found = interval(samples, level=level)
    middle = median(samples) if samples else 0.0
    return None if found is None or not middle else max(middle - found[0], found[1] - middle) / middle


@cache
def _rank(count: int, level: float) -> int:
    """The largest r such that fewer than r of the samples are below the median seldom enough; 0 if there is none."""
    outside = (1 - level) / 2
    if count > EXACT:
        return floor((count + 1) / 2 - NormalDist().inv_cdf(1 - outside) * sqrt(count) / 2)
    below = 0.0
    for rank in range(count):
        below += comb(count, rank) / 2**count
        if below > outside:
            return rank
    return 0
