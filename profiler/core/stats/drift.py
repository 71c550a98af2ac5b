"""Whether samples rise or fall with time, and by how much: knows nothing of what they are samples of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from math import ceil, copysign, sqrt
from statistics import median

CERTAIN = 3.0  # standard deviations: one series in 370 without a drift
MOST = 500  # of a longer series the medians of so many stretches are taken, since pairs are many


def drift(series: Sequence[Sequence[float]]) -> float | None:
    """How much the samples change from the first third to the last, as a fraction; None where it may be chance.

    Each of the series is in its own order of time; the change is the median over them. It is chance where the number of
    pairs that rise less that of those that fall, summed over the series, is within three standard deviations of what
    it is without a drift (Kendall's test, summed as in Hirsch and Slack 1984, Water Resources Research 20).
    """
    stretches = [_stretches(one) for one in series if len(one) > 1]
    score, variance = sum(map(_score, stretches)), sum(map(_variance, stretches))
    if variance <= 0 or abs(score) - 1 < CERTAIN * sqrt(variance):
        return None
    changes = [_change(one) for one in stretches if all(one)]
    change = median(changes) if changes else 0.0
    return change if copysign(1, change) == copysign(1, score) else None


def _stretches(samples: Sequence[float]) -> list[float]:
    size = ceil(len(samples) / MOST)
    return [median(samples[at : at + size]) for at in range(0, len(samples), size)] if size > 1 else list(samples)


def _score(samples: Sequence[float]) -> int:
    """Pairs of which the later is larger, less those of which it is smaller."""
    before: list[float] = []
    score = 0
    for sample in samples:
        score += bisect_left(before, sample) - (len(before) - bisect_right(before, sample))
        insort(before, sample)
    return score


def _variance(samples: Sequence[float]) -> float:
    """Of the score where all orders are alike; equal samples are taken off."""
    equal = Counter(samples).values() if len(set(samples)) < len(samples) else ()
    return _orders(len(samples)) - sum(map(_orders, equal))


def _orders(count: int) -> float:
    """The variance of the score of so many samples that all differ."""
    return count * (count - 1) * (2 * count + 5) / 18


def _change(samples: Sequence[float]) -> float:
    third = max(1, len(samples) // 3)
    return median(samples[-third:]) / median(samples[:third]) - 1
