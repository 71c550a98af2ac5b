"""The one rule for whether two times can be told apart; tables, notes, pictures, plans and comparisons use it.

It is explained in docs/numbers.md; what the interval between two runs means is in docs/comparing.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import exp, fsum, hypot, inf, log, sqrt
from statistics import NormalDist, median
from typing import Literal, NamedTuple

import msgspec

from profiler.core.record import Record
from profiler.core.stats import LEVEL, RoundSteps, calm_ratios, ratio_of_pairs

TimeVerdict = Literal["faster", "slower", "same", "cannot be told apart", "too noisy to tell"]
Rounds = Sequence[Sequence[float]]  # the samples of each round, in the order in which they were taken

MARGIN = 0.01  # relative: a smaller difference does not matter to the choice of a strategy
NOISY = 2.0  # an interval that extends from its ratio by more than this factor, +-100 %, tells nothing
NUM_STRETCHES = 10  # how many stretches a single round is cut into
# the t with P(|T| <= t) = LEVEL in Student's distribution, from one degree of freedom on
STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)


class TimeRatio(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ratio of a step's time to another's, and its confidence interval; None if there is none."""

    ratio: float
    low: float | None = None
    high: float | None = None
    num_pairs: int = 0  # pairs of steps that alternated in one process; 0: from rounds, or an estimate

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_basis(self) -> bool:
        """Whether it stands on pairs or on several rounds, not on one round of two processes."""
        return self.num_pairs > 0 or self.low is not None

    @property
    def uncertainty(self) -> float | None:
        """The relative distance from the ratio to the farther end of the interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.ratio - self.low, self.high - self.ratio) / self.ratio

    @property
    def is_noisy(self) -> bool:
        """Whether the interval extends from the ratio by more than the factor NOISY, up or down: it tells nothing."""
        return self.interval is not None and (
            self.interval[1] > NOISY * self.ratio or self.interval[0] * NOISY < self.ratio
        )


def verdict(time: TimeRatio | None, *, floor: float | None = None) -> TimeVerdict:
    """Return the verdict on the ratio of two times.

    `floor` is the noise of the run, how far `none` may be from itself: no ratio nearer to 1 is called a difference.
    """
    if time is None or time.low is None or time.high is None:
        return "cannot be told apart"
    if time.low >= 1 / (1 + MARGIN) and time.high <= 1 + MARGIN:
        return "same"
    if time.is_noisy:
        return "too noisy to tell"
    if time.high >= 1 / (1 + MARGIN) and time.low <= 1 + MARGIN:
        return "cannot be told apart"
    if floor is not None and abs(log(time.ratio)) <= log(1 + floor):
        return "cannot be told apart"
    return "slower" if time.low > 1 + MARGIN else "faster"


def floor_of(itself: TimeRatio | None) -> float | None:
    """Return how far `none` may be from itself, as a fraction: the farther end of its interval; None without one."""
    if itself is None or itself.interval is None:
        return None
    return exp(max(_distance(end) for end in itself.interval)) - 1


def estimated(before: float, after: float) -> TimeRatio | None:
    """Return the ratio of predicted seconds, which have no noise; None if `before` takes no time."""
    return TimeRatio(ratio=after / before, low=after / before, high=after / before) if before > 0 else None


def of_pairs(rounds: Rounds) -> TimeRatio:
    """Return the ratio from the pairs of all rounds, a process each, and its interval: none for fewer than six pairs.

    If the rounds differ by more than their pairs do, the interval is widened to hold the ratio of each.
    """
    ratios = list(chain.from_iterable(rounds))
    ratio, limits = ratio_of_pairs(ratios)
    if limits is None:
        return TimeRatio(ratio=ratio, num_pairs=len(ratios))
    if _differ(rounds):
        middles = [ratio_of_pairs(round_)[0] for round_ in rounds if round_]
        limits = min(limits[0], *middles), max(limits[1], *middles)
    return TimeRatio(ratio=ratio, low=limits[0], high=limits[1], num_pairs=len(ratios))


def of_records(rounds: Sequence[Record]) -> TimeRatio | None:
    """Return the ratio of steps with the strategy to steps without it that alternated with them; None if none did."""
    steps = [
        RoundSteps(own, plain, readings.processor_seconds or (), readings.plain_processor_seconds or ())
        for readings in (record.readings for record in rounds)
        if (own := readings.step_seconds) and (plain := readings.plain_step_seconds)
    ]
    ratios = calm_ratios(steps) if steps else ()
    return of_pairs(ratios) if any(ratios) else None


def of_rounds(ratios: Sequence[float]) -> TimeRatio:
    """Return the median of the ratios of rounds, each of two processes, and their range if there are several."""
    if len(ratios) == 1:
        return TimeRatio(ratio=ratios[0])
    return TimeRatio(ratio=median(ratios), low=min(ratios), high=max(ratios))


def quotient(time: TimeRatio, other: TimeRatio) -> TimeRatio:
    """Return the ratio of two ratios to the same step; how far their intervals reach adds in squares, in logarithms."""
    ratio = time.ratio / other.ratio
    if time.interval is None or other.interval is None:
        return TimeRatio(ratio=ratio)
    down, up = (_distance(end / time.ratio) for end in time.interval)
    other_down, other_up = (_distance(end / other.ratio) for end in other.interval)
    return TimeRatio(ratio=ratio, low=ratio * exp(-hypot(down, other_up)), high=ratio * exp(hypot(up, other_down)))


def _distance(ratio: float) -> float:
    return abs(log(ratio)) if ratio > 0 else inf


def _differ(rounds: Rounds) -> bool:
    """Whether rounds differ by more than their pairs explain, at LEVEL: Kruskal-Wallis test, JASA 47, 1952."""
    series = [round_ for round_ in rounds if round_]
    values = sorted(chain.from_iterable(series))
    counts = Counter(values)
    total = len(values)
    ties = 1 - sum(count**3 - count for count in counts.values()) / (total**3 - total)
    if len(series) < 2 or not ties:
        return False
    first = {value: place for place, value in reversed(list(enumerate(values)))}
    rank = {value: first[value] + (count + 1) / 2 for value, count in counts.items()}
    squares = sum(sum(rank[ratio] for ratio in round_) ** 2 / len(round_) for round_ in series)
    freedom = len(series) - 1
    part = 2 / (9 * freedom)  # the quantile of chi-squared: Wilson and Hilferty, PNAS 17, 1931; within 1 %
    most = freedom * (1 - part + NormalDist().inv_cdf(LEVEL) * sqrt(part)) ** 3
    return (12 / (total * (total + 1)) * squares - 3 * (total + 1)) / ties > most


class Sample(NamedTuple):
    """The statistics of one side's samples, taken without pairs, that a comparison needs."""

    middle: float  # the median
    num_units: int
    mean: float | None = None  # of the logarithms of the units; None if one is not above zero, or there is only one
    spread: float = 0.0  # squared standard error of that mean


@lru_cache(maxsize=2**14)  # a row is compared with many others
def sample(rounds: tuple[tuple[float, ...], ...]) -> Sample:
    """Return the statistics that a comparison needs of one side's samples."""
    seconds, independent = list(chain.from_iterable(rounds)), units(rounds)
    if min(seconds) <= 0 or len(independent) < 2:
        return Sample(median(seconds), len(independent))
    logarithms = list(map(log, independent))
    mean = fsum(logarithms) / len(logarithms)
    # statistics.variance is exact, and takes twenty times as long
    variance = fsum([(value - mean) ** 2 for value in logarithms]) / (len(logarithms) - 1)
    return Sample(median(seconds), len(independent), mean, variance / len(logarithms))


def units(rounds: Rounds) -> Sequence[float]:
    """Return what is taken to be independent: the medians of the rounds, each a process of its own.

    For a single round, the medians of stretches of consecutive steps, since neighbors are correlated.
    """
    measured = [seconds for seconds in rounds if seconds]
    if len(measured) > 1:
        return [median(seconds) for seconds in measured]
    samples = measured[0] if measured else ()
    if len(samples) <= NUM_STRETCHES:
        return samples
    edges = [len(samples) * place // NUM_STRETCHES for place in range(NUM_STRETCHES + 1)]
    return [median(samples[edges[place] : edges[place + 1]]) for place in range(NUM_STRETCHES)]


def of_samples(before: Sample, after: Sample) -> TimeRatio | None:
    """Return the ratio of two medians; None if `before` takes no time.

    Its interval is Welch's t interval of the difference of mean logarithms of the units; it always contains the ratio
    of the medians. A side without noise, such as a prediction, has equal samples.
    """
    if before.middle <= 0:
        return None
    ratio = after.middle / before.middle
    if before.mean is None or after.mean is None:
        return TimeRatio(ratio=ratio)
    spread, centre = before.spread + after.spread, after.mean - before.mean
    half = t_quantile(_freedom(before, after)) * sqrt(spread) if spread else 0.0
    return TimeRatio(ratio=ratio, low=min(ratio, exp(centre - half)), high=max(ratio, exp(centre + half)))


def _freedom(before: Sample, after: Sample) -> float:
    """Return Welch's degrees of freedom for small samples (Biometrika 34, 1947), within their possible range."""
    first, second = before.num_units, after.num_units
    parts = before.spread**2 / (first + 1) + after.spread**2 / (second + 1)
    freedom = (before.spread + after.spread) ** 2 / parts - 2
    return min(max(freedom, min(first, second) - 1), first + second - 2)


def t_quantile(freedom: float) -> float:
    """Return the t with P(|T| <= t) = LEVEL in Student's distribution; `freedom` is at least 1.

    Between the degrees of STUDENT the logarithm of t is interpolated in 1 / freedom: within 1 % of t from 2 on, and
    within 4 % below. Above them it is Fisher's expansion (Abramowitz and Stegun 26.7.5), within 0.02 %.
    """
    if freedom >= len(STUDENT):
        z = NormalDist().inv_cdf((1 + LEVEL) / 2)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / freedom + second / freedom**2 + third / freedom**3
    below = int(freedom)
    low, high = log(STUDENT[below - 1]), log(STUDENT[below])
    return exp(low + (1 / below - 1 / freedom) * below * (below + 1) * (high - low))
