"""Statistics of a series of samples: warm-up, spread, uncertainty of the median, drift, when to stop sampling."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, takewhile
from math import ceil, comb, copysign, floor, sqrt
from statistics import NormalDist, median

import msgspec
from msgspec import UNSET, UnsetType

LEAST_LATER = 5  # the fewest later steps that the first ones are compared with
SLOWER = 0.02  # fraction of the median: a step slower by no more than this is not slow
LEVEL = 0.95  # confidence level of intervals
EXACT = 1000  # samples; above, the normal approximation of the binomial distribution is good enough
SHORTEST = 1e-3  # seconds of a sample; in less, waiting for the device and reading its clock weigh too much
MOST_STEPS = 1000  # per sample
FIRST_LOOK = 6  # samples: the fewest that have an interval
CERTAIN = 3.0  # standard deviations, which one in 370 series without a drift exceeds
FEWEST_DRIFTING = 7  # samples in all series; fewer cannot show a certain drift in any order
MOST_STRETCHES = 500  # a longer series is reduced to the medians of so many stretches, since pairs grow quadratically


def num_warmup(seconds: Sequence[float]) -> int:
    """Return how many of the first steps are warm-up: those before the first that is no slower than the later ones.

    A step is slower if it exceeds the slowest of the later half (of at least five steps) by more than the range of that
    half, and the median of that half by more than 2 %. So never more than half are warm-up, and identically distributed
    steps seldom are.
    """
    later = seconds[-max(LEAST_LATER, len(seconds) // 2) :]
    if len(later) == len(seconds):
        return 0
    limit = max(2 * max(later) - min(later), median(later) * (1 + SLOWER))
    return sum(1 for _ in takewhile(lambda second: second > limit, seconds[: -len(later)]))


def middle(ordered: Sequence[float]) -> float:
    """Return the median of samples in ascending order, which statistics.median would sort again."""
    half, is_odd = divmod(len(ordered), 2)
    return ordered[half] if is_odd else (ordered[half - 1] + ordered[half]) / 2


@lru_cache(maxsize=64)  # a row and its timing doubts ask for the same samples
def spread(samples: tuple[float, ...]) -> float | None:
    """Return half the interquartile range over the median; None for fewer than two samples.

    The quartiles are those of statistics.quantiles(method="inclusive"), to the bit, in a third of its time.
    """
    if len(samples) < 2:
        return None
    ordered = sorted(samples)
    low, centre, high = _quartile(ordered, 1), _quartile(ordered, 2), _quartile(ordered, 3)
    return (high - low) / 2 / centre if centre else None


def _quartile(ordered: Sequence[float], number: int) -> float:
    place, rest = divmod(number * (len(ordered) - 1), 4)
    return (ordered[place] * (4 - rest) + ordered[place + 1] * rest) / 4


def interval(samples: Sequence[float], *, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the distribution-free confidence interval of the median, from order statistics.

    It is the narrowest pair of order statistics, symmetric in rank, that covers the median at this level, whatever the
    distribution. None if even the smallest and the largest sample do not: at 95 % for fewer than six. Source: Conover,
    Practical Nonparametric Statistics, 3rd edition, section 3.2.
    """
    rank = _rank(len(samples), level)
    if not rank:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def centre(samples: Sequence[float], *, level: float = LEVEL) -> tuple[float, tuple[float, float] | None]:
    """Return the Hodges-Lehmann estimate of the center of a symmetric distribution, and its confidence interval.

    The estimate is the median of the means of all pairs of samples, each with itself too (Annals of Mathematical
    Statistics 34, 1963); the interval is that of Wilcoxon's signed-rank test, interpolated to the level. It is None if
    there are too few samples: at 95 % fewer than six. A third fewer samples give the precision of a median. Takes time
    quadratic in the number of samples.
    """
    means = sorted((one + other) / 2 for at, one in enumerate(samples) for other in samples[at:])
    outside = (1 - level) / 2
    tails = _signed_rank_tails(len(samples))
    rank = bisect_right(tails, outside)  # how many means to leave out at each end
    if not rank:
        return middle(means), None
    low, high = means[rank - 1], means[-rank]
    if 2 * rank < len(means):
        inward = (outside - tails[rank - 1]) / (tails[rank] - tails[rank - 1])
        low, high = low + inward * (means[rank] - low), high + inward * (means[-rank - 1] - high)
    return middle(means), (low, high)


@cache
def _signed_rank_tails(count: int) -> list[float]:
    """Return P(W <= 0), P(W <= 1), ... of Wilcoxon's signed-rank statistic under the null hypothesis."""
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return [below / 2**count for below in accumulate(ways)]


def uncertainty(samples: Sequence[float]) -> float | None:
    """Return the relative distance from the median to the farther end of its interval; None without an interval."""
    limits = interval(samples)
    middle = median(samples) if samples else 0.0
    return None if limits is None or not middle else max(middle - limits[0], limits[1] - middle) / middle


@cache
def _rank(count: int, level: float) -> int:
    """Return the largest r with P(fewer than r samples are below the median) <= (1 - level) / 2; 0 if there is none."""
    outside = (1 - level) / 2
    if count > EXACT:
        return floor((count + 1) / 2 - NormalDist().inv_cdf(1 - outside) * sqrt(count) / 2)
    below = 0.0
    for rank in range(count):
        below += comb(count, rank) / 2**count
        if below > outside:
            return rank
    return 0


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a round stops sampling the time, if no fixed number of samples was asked for."""

    precision_target: float = 0.03  # how far the interval may reach from the median or ratio, as a fraction of it
    max_samples: int = 100
    max_seconds: float = 2.0  # of timed steps
    ends_together: bool | UnsetType = UNSET  # strategies of one process: all precise enough, or at a limit


def is_look(count: int, *, first: int = FIRST_LOOK) -> bool:
    """Whether the precision is checked at this many samples: 6, 8, 10, 12, 15, 18, 22, ..., each a fifth more.

    Each check is a chance to stop by luck, so there are few.
    """
    look = first
    while look < count:
        look = ceil(look * 1.2)
    return look == count


def stop_reason(seconds: Sequence[float], sampling: Sampling, *, least: int) -> str | None:
    """Return why sampling stops here: "target", or the limit "samples" or "seconds"; None to go on.

    `seconds` are all steps after the requested warm-up. Those detected as warm-up count neither for the target nor
    among the `least` samples that are taken in any case.
    """
    has_all = len(seconds) >= sampling.max_samples
    is_over = has_all or sum(seconds) >= sampling.max_seconds
    if not (is_over or is_look(len(seconds))):
        return None
    steady = seconds[num_warmup(seconds) :]
    if len(steady) < least:
        return None
    unsure = uncertainty(steady)
    if unsure is not None and unsure <= sampling.precision_target:
        return "target"
    return "samples" if has_all else "seconds" if is_over else None


def drift(series: Sequence[Sequence[float]]) -> float | None:
    """Return the relative change of the samples from the first third to the last; None if it may be chance.

    Each series is in its own order of time; the change is the median over the series. It may be chance if the number of
    rising pairs minus that of falling pairs, summed over the series, is within three standard deviations of its mean
    without a drift (Kendall's test, summed as in Hirsch and Slack 1984, Water Resources Research 20).
    """
    if sum(map(len, series)) < FEWEST_DRIFTING:
        return None
    stretches = [_stretches(values) for values in series if len(values) > 1]
    variance = sum(map(_variance, stretches))
    certain = CERTAIN * sqrt(max(0.0, variance))
    if variance <= 0 or sum(len(values) * (len(values) - 1) // 2 for values in stretches) - 1 < certain:
        return None  # no order of the samples would be certain, as with a few rounds, the usual case in a large run
    score = sum(map(_score, stretches))
    if abs(score) - 1 < certain:
        return None
    changes = [_change(values) for values in stretches if all(values)]
    change = median(changes) if changes else 0.0
    return change if copysign(1, change) == copysign(1, score) else None


def _stretches(samples: Sequence[float]) -> list[float]:
    size = ceil(len(samples) / MOST_STRETCHES)
    return [median(samples[at : at + size]) for at in range(0, len(samples), size)] if size > 1 else list(samples)


def _score(samples: Sequence[float]) -> int:
    """Return Kendall's score: the pairs whose later sample is larger, minus the pairs whose later sample is smaller."""
    before: list[float] = []
    score = 0
    for sample in samples:
        score += bisect_left(before, sample) - (len(before) - bisect_right(before, sample))
        insort(before, sample)
    return score


def _variance(samples: Sequence[float]) -> float:
    """Return the variance of the score if all orders are equally likely, corrected for ties."""
    equal = Counter(samples).values() if len(set(samples)) < len(samples) else ()
    return _orders(len(samples)) - sum(map(_orders, equal))


def _orders(count: int) -> float:
    """Return the variance of the score of so many distinct samples."""
    return count * (count - 1) * (2 * count + 5) / 18


def _change(samples: Sequence[float]) -> float:
    third = max(1, len(samples) // 3)
    return median(samples[-third:]) / median(samples[:third]) - 1


def highest(values: Sequence[int], num_points: int) -> list[int]:
    """Return the index of the largest value in each of `num_points` equal stretches, at most as many as values."""
    num_points = min(num_points, len(values))
    edges = [len(values) * at // num_points for at in range(num_points + 1)]
    return [max(range(edges[at], edges[at + 1]), key=values.__getitem__) for at in range(num_points)]
