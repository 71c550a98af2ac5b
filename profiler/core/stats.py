"""Step times: steps with and without a strategy in turn, their ratio and its interval, warm-up, drift, when to stop.

A cycle is one step of each strategy and one step without any, which forms a pair with each of them. The second of every
two cycles has the reverse order, unless a strategy left between them, so that a linear drift makes one ratio too high
by as much as the other is too low. The order is random, so that a periodic disturbance, such as another process's share
of a core, does not always meet the same step. Source: the ABBA design of crossover trials.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, takewhile
from math import ceil, comb, copysign, exp, floor, log, sqrt
from random import Random
from statistics import NormalDist, median, quantiles
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

LEVEL = 0.95  # confidence level of intervals
LOOK_LEVEL = 0.75  # level of a round's interval, which is then as wide as that of three rounds together at 95 %
FIRST_LOOK = 6  # samples: the fewest that have an interval at LEVEL
LEAST_PAIRS = 2  # per round, unless its trial asks for another number
BRIEF_SECONDS = 0.25  # time limit of the steps of a first look, a round that needs only one pair
WAITED = 0.1  # fraction of the fastest step: how much longer than others a step may be without a core
MOST_PAIRS = 48  # per ratio; more are reduced to medians of neighbors, since the work is quadratic
EXACT = 1000  # samples; above, the normal approximation of the binomial distribution is good enough
LEAST_LATER = 5  # the fewest later steps that the first ones are compared with
SLOWER = 0.02  # fraction of the median: a step slower by no more than this is not slow
SHORTEST = 1e-3  # seconds of a sample; in less, waiting for the device and reading its clock weigh too much
MOST_STEPS = 1000  # per sample
CERTAIN = 3.0  # standard deviations, which one in 370 series without a drift exceeds
FEWEST_DRIFTING = 7  # samples in all series; fewer cannot show a certain drift in any order
MOST_STRETCHES = 500  # a longer series is reduced to the medians of so many stretches, since pairs grow quadratically


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a round stops sampling the time, if no fixed number of samples was asked for."""

    precision_target: float = 0.03  # how far the interval may reach from the median or ratio, as a fraction of it
    max_samples: int = 100
    max_seconds: float = 2.0  # of timed steps
    ends_together: bool | UnsetType = UNSET  # strategies of one process: all precise enough, or at a limit


def step_order(number: int, count: int = 1, *, round_number: int = 1) -> list[int]:
    """Return the order of the steps in a cycle (from 0): 0 is the step without a strategy, 1, 2, ... the strategies."""
    two, place = divmod(number, 2)
    draw, order = Random(f"{round_number}.{two}"), list(range(1, count + 1))
    draw.shuffle(order)
    order.insert((count + (draw.random() < 0.5)) // 2, 0)  # in the middle, so that it is far from none of them
    return order[::-1] if place else order


def pair_ratios(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of each pair: the step with the strategy over that without it; pairs with a 0 are dropped."""
    return tuple(mine / plain for mine, plain in zip(with_it, without, strict=False) if mine and plain)


class RoundSteps(NamedTuple):
    """The paired steps of one round, in seconds; on a CPU also the seconds in which each step had a core."""

    with_it: Sequence[float]
    without: Sequence[float]
    held: Sequence[float] = ()
    plain_held: Sequence[float] = ()


def calm_ratios(rounds: Sequence[RoundSteps]) -> list[tuple[float, ...]]:
    """Return the ratios of each round's pairs, without pairs in which a step waited for a core, if six or more remain.

    A step that waits takes longer by a random time, many times its own if it is short. It counts as waiting if its time
    without a core exceeds the least of its series by more than a tenth of the fastest step of all. Both steps of a pair
    have the same limit; limits of their own would keep waits of the longer step that the shorter one may not have.
    """
    own = _waits([(steps.with_it, steps.held) for steps in rounds])
    plain = _waits([(steps.without, steps.plain_held) for steps in rounds])
    fastest = min((second for steps in rounds for second in (*steps.with_it, *steps.without) if second), default=0.0)
    calm = [
        tuple(
            one / other
            for one, other, *waits in zip(steps.with_it, steps.without, *both, strict=False)
            if one and other and max(waits) <= WAITED * fastest
        )
        for steps, *both in zip(rounds, own, plain, strict=True)
    ]
    if sum(map(len, calm)) >= FIRST_LOOK:
        return calm
    return [pair_ratios(steps.with_it, steps.without) for steps in rounds]


def _waits(series: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[list[float]]:
    """Return how much longer each step was without a core than the least of its series over all rounds; 0 if not known.

    `series` has, for each round, the seconds of the steps and the seconds in which they had a core.
    """
    waits = [[max(0.0, second - had) for second, had in zip(*steps, strict=False)] for steps in series]
    least = min((wait for round_ in waits for wait in round_), default=0.0)
    return [
        [wait - least for wait in round_] + [0.0] * (len(seconds) - len(round_))
        for round_, (seconds, _) in zip(waits, series, strict=True)
    ]


def ratio_of_pairs(ratios: Sequence[float], *, level: float = LEVEL) -> tuple[float, tuple[float, float] | None]:
    """Return the Hodges-Lehmann estimate of the ratio, and its confidence interval: None for fewer than six at 95 %.

    The estimate is made of logarithms. A disturbance is as likely in either step of a pair, so that their distribution
    is symmetric about the true ratio.
    """
    ratio, limits = centre(_stretches([log(ratio) for ratio in ratios], MOST_PAIRS), level=level)
    return exp(ratio), None if limits is None else (exp(limits[0]), exp(limits[1]))


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
        return median(means), None
    low, high = means[rank - 1], means[-rank]
    if 2 * rank < len(means):
        inward = (outside - tails[rank - 1]) / (tails[rank] - tails[rank - 1])
        low, high = low + inward * (means[rank] - low), high + inward * (means[-rank - 1] - high)
    return median(means), (low, high)


@cache
def _signed_rank_tails(count: int) -> list[float]:
    """Return P(W <= 0), P(W <= 1), ... of Wilcoxon's signed-rank statistic under the null hypothesis."""
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return [below / 2**count for below in accumulate(ways)]


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


def num_warmup_pairs(with_it: Sequence[float], without: Sequence[float]) -> int:
    """Return how many of the first pairs are warm-up: those in which either step is."""
    return max(num_warmup(with_it), num_warmup(without))


def is_look(count: int) -> bool:
    """Whether the precision is checked at this many samples or pairs: 2, 3, 4, 5, 6, 8, 10, 12, 15, ..., a fifth more.

    Each check is a chance to stop by luck, so there are few.
    """
    look = LEAST_PAIRS
    while look < count:
        look = ceil(look * 1.2)
    return look == count


def stop_reason(
    seconds: Sequence[float], sampling: Sampling, *, least: int, without: Sequence[float] = ()
) -> str | None:
    """Return why sampling stops here: "target", or the limit "samples", "seconds" or "look"; None to go on.

    `seconds` are all steps after the requested warm-up; detected warm-up counts for the limits alone. The limits apply
    to all steps together, with the strategy and `without`. The precision is that of the ratio of the pairs if there are
    any, else that of the step. At least `least` pairs or steps are taken; of pairs fewer if `max_samples` is reached.
    """
    count, limit = len(seconds) + len(without), most_seconds(sampling, least) if without else sampling.max_seconds
    has_all = count >= sampling.max_samples
    is_over = has_all or sum(seconds) + sum(without) >= limit
    if not (is_over or is_look(len(seconds))):
        return None
    if without:
        settled = num_warmup_pairs(seconds, without)
        ratios = pair_ratios(seconds[settled:], without[settled:])
        has_least = has_all or len(ratios) >= least
        is_sure = has_least and _is_sure(ratios, sampling.precision_target)
    else:
        steady = seconds[num_warmup(seconds) :]
        reached = uncertainty(steady)
        has_least, is_sure = len(steady) >= least, reached is not None and reached <= sampling.precision_target
    if not has_least:
        return None
    if is_sure:
        return "target"
    return "samples" if has_all else None if not is_over else "look" if limit < sampling.max_seconds else "seconds"


def most_seconds(sampling: Sampling, least_pairs: int) -> float:
    """Return the time limit of a round's steps, with and without the strategy; it applies after `least_pairs`."""
    return min(sampling.max_seconds, BRIEF_SECONDS) if least_pairs == 1 else sampling.max_seconds


def num_least(samples: int, least_pairs: int | UnsetType) -> int:
    """Return the minimum of pairs in a round: what its trial asks for, else half of its `samples`, but at least two."""
    return max(LEAST_PAIRS, ceil(samples / 2)) if least_pairs is UNSET else least_pairs


def _is_sure(ratios: Sequence[float], target: float) -> bool:
    """Whether three such rounds together can be expected to reach the target precision."""
    if len(ratios) == LEAST_PAIRS:  # which have no interval: they must be within half the target of each other
        return max(ratios) - min(ratios) <= target / 2 * min(ratios)
    ratio, limits = ratio_of_pairs(ratios, level=LOOK_LEVEL)
    return limits is not None and max(ratio - limits[0], limits[1] - ratio) <= target * ratio


@lru_cache(maxsize=64)  # a row and its timing doubts ask for the same samples
def spread(samples: tuple[float, ...]) -> float | None:
    """Return half the interquartile range over the median; None for fewer than two samples."""
    if len(samples) < 2:
        return None
    low, middle, high = quantiles(samples, method="inclusive")
    return (high - low) / 2 / middle if middle else None


def drift(series: Sequence[Sequence[float]]) -> float | None:
    """Return the relative change of the samples from the first third to the last; None if it may be chance.

    Each series is in its own order of time; the change is the median over the series. It may be chance if the number of
    rising pairs minus that of falling pairs, summed over the series, is within three standard deviations of its mean
    without a drift (Kendall's test, summed as in Hirsch and Slack 1984, Water Resources Research 20).
    """
    if sum(map(len, series)) < FEWEST_DRIFTING:
        return None  # the usual case in a large run
    stretches = [_stretches(values, MOST_STRETCHES) for values in series if len(values) > 1]
    score = 0  # Kendall's: the pairs whose later sample is larger, minus the pairs whose later sample is smaller
    for values in stretches:
        before: list[float] = []
        for sample in values:
            score += bisect_left(before, sample) - (len(before) - bisect_right(before, sample))
            insort(before, sample)

    def orders(count: int) -> float:  # the variance of the score of so many distinct samples in any order
        return count * (count - 1) * (2 * count + 5) / 18

    ties = (orders(times) for values in stretches for times in Counter(values).values())
    variance = sum(orders(len(values)) for values in stretches) - sum(ties)
    if abs(score) - 1 < CERTAIN * sqrt(max(0.0, variance)):
        return None
    thirds = [(values, max(1, len(values) // 3)) for values in stretches if all(values)]
    changes = [median(values[-third:]) / median(values[:third]) - 1 for values, third in thirds]
    change = median(changes) if changes else 0.0
    return change if copysign(1, change) == copysign(1, score) else None


def _stretches(samples: Sequence[float], most: int) -> list[float]:
    """Return the samples, or the medians of at most so many stretches of them."""
    size = ceil(len(samples) / most)
    return [median(samples[at : at + size]) for at in range(0, len(samples), size)] if size > 1 else list(samples)


def highest(values: Sequence[int], num_points: int) -> list[int]:
    """Return the index of the largest value in each of `num_points` equal stretches, at most as many as values."""
    num_points = min(num_points, len(values))
    edges = [len(values) * at // num_points for at in range(num_points + 1)]
    return [max(range(edges[at], edges[at + 1]), key=values.__getitem__) for at in range(num_points)]


def largest_known(values: Iterable[int | None]) -> int | None:
    """Return the largest value that was measured; None if none was."""
    return max((value for value in values if value is not None), default=None)
