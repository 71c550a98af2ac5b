"""Where a series of step times has warmed up: knows nothing of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from statistics import median

LEAST = 5  # steps that the first ones are compared with
FLOOR = 0.02  # of the median: what no step is called slow for


def num_warmup(seconds: Sequence[float]) -> int:
    """How many of the first steps are warm-up: those before the first that is no slower than the later ones.

    Slower means: above the slowest of the later half (of at least five) by more than they are apart among themselves,
    and by more than 2 %. So never more than half are warm-up, and of steps that are distributed alike seldom any.
    """
    later = seconds[-max(LEAST, len(seconds) // 2) :]
    if len(later) == len(seconds):
        return 0
    limit = max(2 * max(later) - min(later), median(later) * (1 + FLOOR))
    return sum(1 for _ in takewhile(lambda second: second > limit, seconds[: -len(later)]))
