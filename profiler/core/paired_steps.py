"""Steps with a strategy and without it that alternate in one process: the ratios of their groups, and when to stop.

Two pairs make a group of four, of which one pair is turned around: a linear drift cancels. Which one is drawn, so that
nothing that comes periodically, as another process's share of a core, always meets the same step. Source: the ABBA of
crossover trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from profiler.core.stats import Sampling, is_look, num_warmup, uncertainty

WITHOUT_SWITCH = ("compile-budget",)  # strategies that nothing switches off: compiled code stays what it is
LEAST_GROUPS = 2  # in a round: three rounds then have six, the least that have an interval
FIRST_LOOK = 3  # groups: the least of which two ends hold the median in three of four series
LOOK_LEVEL = 0.75  # of a round's interval: as wide as that of three rounds together at 95 %


def is_plain_first(number: int) -> bool:
    """Whether the n-th pair, from 0, begins with the step without the strategy: the same in every process."""
    group, place = divmod(number, 2)
    return (Random(group).random() < 0.5) == (place == 0)


def group_ratios(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, ...]:
    """Of each group of two neighbouring pairs, the steps with the strategy over those without it.

    A pair that is left over counts only where there is no group.
    """
    pairs = list(zip(with_it, without, strict=False))
    groups = [pairs[at : at + 2] for at in range(0, len(pairs) - 1, 2)] or [[pair] for pair in pairs]
    sums = [(sum(mine for mine, _ in group), sum(plain for _, plain in group)) for group in groups]
    return tuple(mine / plain for mine, plain in sums if plain)


def num_warmup_pairs(with_it: Sequence[float], without: Sequence[float]) -> int:
    """How many of the first pairs are warm-up: the groups of which a step is."""
    settling = max(num_warmup(with_it), num_warmup(without))
    return settling + settling % 2


def stop_reason(with_it: Sequence[float], without: Sequence[float], sampling: Sampling, *, least: int) -> str | None:
    """Why sampling ends here: "target" or the limit, "samples" or "seconds"; None to go on.

    The limits are of all steps together, with and without, so that a pair takes no longer than the samples of `none`
    took before; so are the `least` ones that there are in any case. What is looked at is the ratio.
    """
    count = len(with_it) + len(without)
    has_all = count >= sampling.max_samples
    is_over = has_all or sum(with_it) + sum(without) >= sampling.max_seconds
    groups, is_half = divmod(len(with_it), 2)
    if not (has_all or (is_over and not is_half) or (not is_half and is_look(groups, first=FIRST_LOOK))):
        return None
    settled = num_warmup_pairs(with_it, without)
    ratios = group_ratios(with_it[settled:], without[settled:])
    if not has_all and (count - 2 * settled < least or len(ratios) < LEAST_GROUPS):
        return None
    unsure = uncertainty(ratios, level=LOOK_LEVEL) if len(ratios) >= FIRST_LOOK else None
    if unsure is not None and unsure <= sampling.precision_target:
        return "target"
    return "samples" if has_all else "seconds" if is_over else None
