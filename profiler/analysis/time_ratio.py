"""The one rule for whether two times can be told apart; tables, notes, pictures, plans and comparisons use it.

It is explained in docs/telling-apart.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, hypot, inf, log, sqrt
from statistics import NormalDist, median
from typing import Literal

import msgspec

from profiler.core.paired_steps import ratio_of_pairs
from profiler.core.stats import LEVEL

TimeVerdict = Literal["faster", "slower", "same", "cannot be told apart", "too noisy to tell"]

MARGIN = 0.01  # relative: a smaller difference does not matter to the choice of a strategy
NOISY = 2.0  # an interval that extends from its ratio by more than this factor, +-100 %, tells nothing


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
    def uncertainty(self) -> float | None:
        """The relative distance from the ratio to the farther end of the interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.ratio - self.low, self.high - self.ratio) / self.ratio

    @property
    def is_noisy(self) -> bool:
        """Whether the interval is too wide to tell anything."""
        return self.interval is not None and is_noisy(self.ratio, self.low or 0.0, self.high or 0.0)


def is_noisy(ratio: float, low: float, high: float) -> bool:
    """Whether the interval extends from the ratio by more than the factor NOISY, up or down."""
    return high > NOISY * ratio or low * NOISY < ratio


def verdict(time: TimeRatio | None, *, floor: float | None = None) -> TimeVerdict:
    """Return the verdict on the ratio of two times.

    `floor` is the noise of the run, how far `none` may be from itself: no ratio nearer to 1 is called a difference.
    """
    if time is None or time.low is None or time.high is None:
        return "cannot be told apart"
    if time.low >= 1 / (1 + MARGIN) and time.high <= 1 + MARGIN:
        return "same"
    if is_noisy(time.ratio, time.low, time.high):
        return "too noisy to tell"
    if time.high >= 1 / (1 + MARGIN) and time.low <= 1 + MARGIN:
        return "cannot be told apart"
    if floor is not None and abs(log(time.ratio)) <= log(1 + floor):
        return "cannot be told apart"
    return "slower" if time.low > 1 + MARGIN else "faster"


def of_pairs(rounds: Sequence[Sequence[float]]) -> TimeRatio:
    """Return the ratio from the pairs of all rounds, a process each, and its interval: none for fewer than six pairs.

    If the rounds differ by more than their pairs do, the interval is widened to hold the ratio of each.
    """
    ratios = [ratio for round_ in rounds for ratio in round_]
    ratio, limits = ratio_of_pairs(ratios)
    if limits is None:
        return TimeRatio(ratio=ratio, num_pairs=len(ratios))
    if _differ(rounds):
        middles = [ratio_of_pairs(round_)[0] for round_ in rounds if round_]
        limits = min(limits[0], *middles), max(limits[1], *middles)
    return TimeRatio(ratio=ratio, low=limits[0], high=limits[1], num_pairs=len(ratios))


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
    (down, up), (other_down, other_up) = _reach(time), _reach(other)
    return TimeRatio(ratio=ratio, low=ratio * exp(-hypot(down, other_up)), high=ratio * exp(hypot(up, other_down)))


def floor_of(itself: TimeRatio | None) -> float | None:
    """Return how far `none` may be from itself, as a fraction: the farther end of its interval; None without one."""
    if itself is None or itself.interval is None:
        return None
    return exp(max(_distance(end) for end in itself.interval)) - 1


def _reach(time: TimeRatio) -> tuple[float, float]:
    """Return how far the interval extends down and up from the ratio, in logarithms."""
    low, high = time.interval or (time.ratio, time.ratio)
    return _distance(low / time.ratio), _distance(high / time.ratio)


def _distance(ratio: float) -> float:
    return abs(log(ratio)) if ratio > 0 else inf


def _differ(rounds: Sequence[Sequence[float]]) -> bool:
    """Whether rounds differ by more than their pairs explain, at LEVEL: Kruskal-Wallis test, JASA 47, 1952."""
    series = [round_ for round_ in rounds if round_]
    values = sorted(ratio for round_ in series for ratio in round_)
    counts = Counter(values)
    total = len(values)
    ties = 1 - sum(count**3 - count for count in counts.values()) / (total**3 - total)
    if len(series) < 2 or not ties:
        return False
    first = {value: place for place, value in reversed(list(enumerate(values)))}
    rank = {value: first[value] + (count + 1) / 2 for value, count in counts.items()}
    squares = sum(sum(rank[ratio] for ratio in round_) ** 2 / len(round_) for round_ in series)
    return (12 / (total * (total + 1)) * squares - 3 * (total + 1)) / ties > _chi_squared(len(series) - 1)


def _chi_squared(freedom: int) -> float:
    """Return the quantile of chi-squared at LEVEL: Wilson and Hilferty, PNAS 17, 1931; within 1 %."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + NormalDist().inv_cdf(LEVEL) * sqrt(part)) ** 3
