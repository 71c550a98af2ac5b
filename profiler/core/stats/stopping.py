"""When enough samples have been taken: knows nothing of how they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from profiler.core.stats.interval import LEVEL, uncertainty
from profiler.core.stats.warmup import num_warmup

SHORTEST = 1e-3  # seconds of a sample; of fewer, waiting for the device and reading its clock are too large a part
MOST_STEPS = 1000  # in one sample


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Until when a round samples the time, where no fixed number was asked for."""

    precision_target: float = 0.02  # how far the interval of the median may reach from it, as a fraction of it
    max_samples: int = 100
    max_seconds: float = 2.0  # of timed steps


def is_look(count: int) -> bool:
    """Whether this many samples are looked at: 6, 8, 10, 12, 15, 18, 22, ..., each a fifth more.

    Six is the least that has an interval. Each look is a chance to stop by luck, so there are few.
    """
    look = 6
    while look < count:
        look = ceil(look * 1.2)
    return look == count


def reason(seconds: Sequence[float], sampling: Sampling, *, least: int) -> str | None:
    """Why sampling ends here: "target" or the limit, "samples" or "seconds"; None to go on.

    `seconds` are all steps since the warm-up that was asked for. What is found to be warm-up among them does not count
    for the target, nor among the `least` samples that there are in any case.
    """
    has_all = len(seconds) >= sampling.max_samples
    is_over = has_all or sum(seconds) >= sampling.max_seconds
    if not (is_over or is_look(len(seconds))):
        return None
    steady = seconds[num_warmup(seconds) :]
    if len(steady) < least:
        return None
    unsure = uncertainty(steady, level=LEVEL)
    if unsure is not None and unsure <= sampling.precision_target:
        return "target"
    return "samples" if has_all else "seconds" if is_over else None
