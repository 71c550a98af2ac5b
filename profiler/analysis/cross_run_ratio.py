"""Compares two samples of seconds, or two exact numbers, of different runs: a ratio, its interval, a verdict.

What the interval means is in docs/comparing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from math import cos, exp, floor, fsum, log, pi, sin, sqrt, tan
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from profiler.analysis.time_ratio import TimeRatio, TimeVerdict, verdict
from profiler.core.stats import LEVEL, middle

Rounds = Sequence[Sequence[float]]  # the samples of each round, in the order in which they were taken
Verdict = TimeVerdict | Literal["better", "worse", "off"]  # of bytes; off: different, but of two kinds of evidence

UNTOLD: TimeVerdict = "cannot be told apart"
NUM_STRETCHES = 10  # how many stretches a single round is cut into
MOST_SAMPLES = 256  # how many rows are cached
HALVINGS = 60  # bisections of a right angle, to the last bit of a float


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """A value over the baseline's; less is better."""

    ratio: float | None  # None if the baseline is zero
    low: float | None = None  # the interval at LEVEL; None if there is none: exact, or a single sample
    high: float | None = None
    verdict: Verdict


def exact(before: int, after: int, *, is_of_two_kinds: bool = False) -> Contrast:
    """Compare numbers without noise, such as bytes: any difference counts.

    Between two kinds of evidence, such as a measurement and a rehearsal, neither is better.
    """
    verdict: Verdict = "same" if after == before else "better" if after < before else "worse"
    verdict = "off" if is_of_two_kinds and verdict != "same" else verdict
    ratio = after / before if before else 1.0 if after == before else None
    return Contrast(ratio=ratio, verdict=verdict)


def estimated(before: float, after: float) -> Contrast:
    """Compare predicted seconds: they have no noise, and are the same within the margin."""
    if before <= 0:
        return Contrast(ratio=None, verdict="same" if after == before else UNTOLD)
    ratio = after / before
    return Contrast(ratio=ratio, verdict=verdict(TimeRatio(ratio=ratio, low=ratio, high=ratio)))


class Sample(NamedTuple):
    """The statistics of one side's samples that a comparison needs."""

    middle: float  # the median
    num_units: int
    mean: float | None = None  # of the logarithms of the units; None if one is not above zero, or there is only one
    spread: float = 0.0  # squared standard error of that mean


def sampled(before: Rounds, after: Rounds, *, floor: float | None = None) -> Contrast:
    """Compare two medians: their ratio, with Welch's t interval of the difference of mean logarithms of the units.

    A side without noise (a prediction of seconds, compared with a measurement) is passed as equal samples. `floor` is
    the larger noise floor of the two runs, as in `time_ratio.verdict`.
    """
    time = ratio_of(*(_remembered(tuple(map(tuple, side))) for side in (before, after)))
    if time is not None and time.interval is not None:
        return Contrast(ratio=time.ratio, low=time.low, high=time.high, verdict=verdict(time, floor=floor))
    first, second = sorted(_joined(before)), sorted(_joined(after))
    is_same = first == second and first[0] <= 0
    return Contrast(ratio=time.ratio if time else None, verdict="same" if is_same else UNTOLD)


def ratio_of(before: Sample, after: Sample) -> TimeRatio | None:
    """Return the ratio of `sampled`, without its verdict; None if `before` takes no time."""
    if before.middle <= 0:
        return None
    ratio = after.middle / before.middle
    if before.mean is None or after.mean is None:
        return TimeRatio(ratio=ratio)
    low, high = _interval(before, after, ratio=ratio)
    return TimeRatio(ratio=ratio, low=low, high=high)


def sample(rounds: Rounds) -> Sample:
    """Return the statistics that a comparison needs of one side's samples."""
    seconds = sorted(_joined(rounds))
    independent = units(rounds)
    if seconds[0] <= 0 or len(independent) < 2:
        return Sample(middle(seconds), len(independent))
    logarithms = list(map(log, independent))
    spread = _variance(logarithms) / len(logarithms)
    return Sample(middle(seconds), len(independent), fsum(logarithms) / len(logarithms), spread)


_remembered = lru_cache(maxsize=MOST_SAMPLES)(sample)  # a row is compared with many others


def units(rounds: Rounds) -> Sequence[float]:
    """Return what is taken to be independent: the medians of the rounds, each a process of its own.

    For a single round, the medians of stretches of consecutive steps, since neighbors are correlated.
    """
    measured = [seconds for seconds in rounds if seconds]
    if len(measured) > 1:
        return [median(seconds) for seconds in measured]
    samples = _joined(measured)
    if len(samples) <= NUM_STRETCHES:
        return samples
    edges = [len(samples) * place // NUM_STRETCHES for place in range(NUM_STRETCHES + 1)]
    return [median(samples[edges[place] : edges[place + 1]]) for place in range(NUM_STRETCHES)]


def _joined(rounds: Rounds) -> Sequence[float]:
    return rounds[0] if len(rounds) == 1 else list(chain.from_iterable(rounds))


def _interval(before: Sample, after: Sample, *, ratio: float) -> tuple[float, float]:
    """Return the confidence interval of the ratio, from logarithms; it always contains the ratio of the medians."""
    assert before.mean is not None, "it has two units or more"
    assert after.mean is not None, "so has this one"
    spread, centre = before.spread + after.spread, after.mean - before.mean
    if spread == 0:
        return min(ratio, exp(centre)), max(ratio, exp(centre))
    half = t_quantile(LEVEL, _freedom(before, after)) * sqrt(spread)
    return min(ratio, exp(centre - half)), max(ratio, exp(centre + half))


def _variance(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)  # statistics.variance is exact, and takes twenty times as long
    return fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1)


def _freedom(before: Sample, after: Sample) -> float:
    """Return Welch's degrees of freedom for small samples (Biometrika 34, 1947), within their possible range."""
    first, second = before.num_units, after.num_units
    parts = before.spread**2 / (first + 1) + after.spread**2 / (second + 1)
    freedom = (before.spread + after.spread) ** 2 / parts - 2
    return min(max(freedom, min(first, second) - 1), first + second - 2)


def t_quantile(confidence: float, freedom: float) -> float:
    """Return the t with P(|T| <= t) = `confidence` in Student's distribution; `freedom` is at least 1.

    Between whole degrees of freedom the logarithm of t is interpolated in 1 / freedom: within 1 % of t from 2 on, and
    within 4 % below. SciPy's takes longer to import than a whole comparison takes (scipy.special 0.6 s); tests compare
    the two.
    """
    below = floor(freedom)
    low, high = _log_t(confidence, below), _log_t(confidence, below + 1)
    share = (1 / below - 1 / freedom) * below * (below + 1)
    return exp(low + share * (high - low))


@cache
def _log_t(confidence: float, freedom: int) -> float:
    """Return the logarithm of t for a whole number of degrees of freedom."""
    least, most = 0.0, pi / 2
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if _within(middle, freedom) < confidence else (least, middle)
    return log(tan((least + most) / 2) * sqrt(freedom))


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| <= tan(angle) sqrt(freedom)): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    if freedom == 1:
        return 2 * angle / pi
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term
    for place in range(2 + odd, freedom - 1, 2):
        term *= (place - 1) / place * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
