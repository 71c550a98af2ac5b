"""Steps with and without strategies that alternate in one process: ratios of their pairs, and when to stop.

A cycle is one step of each strategy and one step without any, which forms a pair with each of them. The second of every
two cycles has the reverse order, unless a strategy left between them, so that a linear drift makes one ratio too high
by as much as the other is too low. The order is random, so that a periodic disturbance, such as another process's share
of a core, does not always meet the same step. Source: the ABBA design of crossover trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log
from random import Random
from statistics import median
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from profiler.core.stats import FIRST_LOOK, LEVEL, Sampling, centre, is_look, num_warmup

WITHOUT_SWITCH = ("compile-budget",)  # strategies that cannot be switched off: compiled code stays as it is
LEAST_PAIRS = 2  # per round, unless its trial asks for another number
BRIEF_SECONDS = 0.25  # time limit of the steps of a first look, a round that needs only one pair
LOOK_LEVEL = 0.75  # level of a round's interval, which is then as wide as that of three rounds together at 95 %
WAITED = 0.1  # fraction of the fastest step: how much longer than others a step may be without a core
MOST_PAIRS = 48  # per ratio; more are reduced to medians of neighbors, since the work is quadratic


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
    size = -(-len(ratios) // MOST_PAIRS)
    logarithms = [log(ratio) for ratio in ratios]
    if size > 1:
        logarithms = [median(logarithms[at : at + size]) for at in range(0, len(logarithms), size)]
    ratio, limits = centre(logarithms, level=level)
    return exp(ratio), None if limits is None else (exp(limits[0]), exp(limits[1]))


def num_warmup_pairs(with_it: Sequence[float], without: Sequence[float]) -> int:
    """Return how many of the first pairs are warm-up: those in which either step is."""
    return max(num_warmup(with_it), num_warmup(without))


def stop_reason(
    with_it: Sequence[float], without: Sequence[float], sampling: Sampling, *, least_pairs: int = LEAST_PAIRS
) -> str | None:
    """Return why sampling stops here: "target", or the limit "samples", "seconds" or "look"; None to go on.

    The limits apply to all steps together, with and without the strategy. The precision is that of the ratio of the
    pairs, of which at least `least_pairs` are taken unless `max_samples` is reached.
    """
    count = len(with_it) + len(without)
    has_all = count >= sampling.max_samples
    seconds = sum(with_it) + sum(without)
    is_over = has_all or seconds >= most_seconds(sampling, least_pairs)
    if not (is_over or is_look(len(with_it), first=LEAST_PAIRS)):
        return None
    settled = num_warmup_pairs(with_it, without)
    ratios = pair_ratios(with_it[settled:], without[settled:])
    if not has_all and len(ratios) < least_pairs:
        return None
    if _is_sure(ratios, sampling.precision_target):
        return "target"
    ends = "look" if most_seconds(sampling, least_pairs) < sampling.max_seconds else "seconds"
    return "samples" if has_all else ends if is_over else None


def most_seconds(sampling: Sampling, least_pairs: int) -> float:
    """Return the time limit of a round's steps, with and without the strategy; it applies after `least_pairs`."""
    return min(sampling.max_seconds, BRIEF_SECONDS) if least_pairs == 1 else sampling.max_seconds


def num_least(samples: int, least_pairs: int | UnsetType) -> int:
    """Return the minimum of pairs in a round: what its trial asks for, else half of its `samples`, but at least two."""
    return max(LEAST_PAIRS, ceil(samples / 2)) if least_pairs is UNSET else least_pairs


def _is_sure(ratios: Sequence[float], target: float) -> bool:
    """Whether three such rounds together can be expected to reach the target precision.

    Two pairs have no interval: they must be within half the target of each other.
    """
    if len(ratios) == LEAST_PAIRS:
        return max(ratios) - min(ratios) <= target / 2 * min(ratios)
    ratio, limits = ratio_of_pairs(ratios, level=LOOK_LEVEL)
    return limits is not None and max(ratio - limits[0], limits[1] - ratio) <= target * ratio
