"""Steps with strategies and without that alternate in one process: the ratios of their pairs, and when to stop.

A cycle is a step of each strategy and one without; each strategy makes a pair with that one. Of every two cycles the
second is turned around, unless a strategy left between them: a linear drift makes one ratio as much too high as the
other too low. The order is drawn, so that nothing that comes periodically, as another process's share of a core, always
meets the same step. Source: the ABBA of crossover trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log
from random import Random
from statistics import median
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from profiler.core.stats import FIRST_LOOK, LEVEL, Sampling, centre, is_look, num_warmup

WITHOUT_SWITCH = ("compile-budget",)  # strategies that nothing switches off: compiled code stays what it is
LEAST_PAIRS = 2  # in a round, where its trial asks for no other number
BRIEF_SECONDS = 0.25  # of the steps of a round of one pair, which is a first look
LOOK_LEVEL = 0.75  # of a round's interval: as wide as that of three rounds together at 95 %
WAITED = 0.1  # of the fastest step: what a step may be without a core longer than others
MOST_PAIRS = 48  # that a ratio is made of; of more, medians of neighbours, since the work grows by the square


def step_order(number: int, count: int = 1, *, round_number: int = 1) -> list[int]:
    """The order of the steps in the n-th cycle, from 0: 0 is the one without a strategy, 1, 2, ... the strategies."""
    two, place = divmod(number, 2)
    draw, order = Random(f"{round_number}.{two}"), list(range(1, count + 1))
    draw.shuffle(order)
    order.insert((count + (draw.random() < 0.5)) // 2, 0)  # in the middle: far from none of them
    return order[::-1] if place else order


def pair_ratios(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, ...]:
    """Of each pair, the step with the strategy over that without it."""
    return tuple(mine / plain for mine, plain in zip(with_it, without, strict=False) if mine and plain)


class RoundSteps(NamedTuple):
    """The steps of one round, in pairs, in seconds; on a CPU with the seconds in which each had a core."""

    with_it: Sequence[float]
    without: Sequence[float]
    held: Sequence[float] = ()
    plain_held: Sequence[float] = ()


def calm_ratios(rounds: Sequence[RoundSteps]) -> list[tuple[float, ...]]:
    """The ratios of each round's pairs, without those of which a step is known to have waited for a core, where six or
    more are left.

    A step that waits takes longer by what chance decides, many times its own time where it is short. It has waited
    where it was without a core for longer than the others of its series by more than a tenth of the fastest step of
    all: one limit for both steps of a pair, since else the longer one would keep waits that the other may not have.
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
    """How much longer each step was without a core than the one of its series, in all rounds, that was least so.

    0 where it is not known. `series` are the seconds of the steps of each round, and those in which they had a core.
    """
    waits = [[max(0.0, second - had) for second, had in zip(*steps, strict=False)] for steps in series]
    least = min((wait for round_ in waits for wait in round_), default=0.0)
    return [
        [wait - least for wait in round_] + [0.0] * (len(seconds) - len(round_))
        for round_, (seconds, _) in zip(waits, series, strict=True)
    ]


def ratio_of_pairs(ratios: Sequence[float], *, level: float = LEVEL) -> tuple[float, tuple[float, float] | None]:
    """The ratio that pairs of steps say, and the interval that holds it so often; None of fewer than six, at 95 %.

    What disturbs a step meets both of a pair alike, so that the logarithms are spread alike to both sides of the truth.
    """
    size = -(-len(ratios) // MOST_PAIRS)
    logarithms = [log(ratio) for ratio in ratios]
    if size > 1:
        logarithms = [median(logarithms[at : at + size]) for at in range(0, len(logarithms), size)]
    ratio, limits = centre(logarithms, level=level)
    return exp(ratio), None if limits is None else (exp(limits[0]), exp(limits[1]))


def num_warmup_pairs(with_it: Sequence[float], without: Sequence[float]) -> int:
    """How many of the first pairs are warm-up: those of which a step is."""
    return max(num_warmup(with_it), num_warmup(without))


def stop_reason(
    with_it: Sequence[float], without: Sequence[float], sampling: Sampling, *, least_pairs: int = LEAST_PAIRS
) -> str | None:
    """Why sampling ends here: "target" or the limit, "samples", "seconds" or "look"; None to go on.

    The limits are of all steps together, with and without. What is looked at is the ratio of the pairs, of which there
    are `least_pairs` in any case.
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
    """How long a round samples at most, with and without the strategy together, once it has the least."""
    return min(sampling.max_seconds, BRIEF_SECONDS) if least_pairs == 1 else sampling.max_seconds


def num_least(samples: int, least_pairs: int | UnsetType) -> int:
    """The least pairs of a round, by what its trial asks for or else by its `samples`, with and without together."""
    return max(LEAST_PAIRS, ceil(samples / 2)) if least_pairs is UNSET else least_pairs


def _is_sure(ratios: Sequence[float], target: float) -> bool:
    """Whether three such rounds may be expected to be as sure together; two pairs have no interval that could tell."""
    if len(ratios) == LEAST_PAIRS:
        return max(ratios) - min(ratios) <= target / 2 * min(ratios)
    ratio, limits = ratio_of_pairs(ratios, level=LOOK_LEVEL)
    return limits is not None and max(ratio - limits[0], limits[1] - ratio) <= target * ratio
