"""Strategy `sqrt`: segments by the square-root rule."""

from __future__ import annotations

from math import isqrt

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments, notes_of_nothing, recomputes
from profiler.training.checkpointing.split import LAST_IS_PLAIN, split_as_torch
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Cuts the chain into as many segments as the square root of its length: memory grows with sqrt(n).

    The split is checkpoint_sequential's. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    length = len(workload.blocks)
    k = round_root(length)
    made = split_as_torch(length, k)
    switch = checkpoint_segments(workload, made.checkpointed)
    return Applied(
        split=f"k={k}: {made}",
        recomputes=recomputes(made.checkpointed),
        notes=notes_of_nothing(made.checkpointed, LAST_IS_PLAIN),
        switch=switch,
    )


def round_root(length: int) -> int:
    """The square root, rounded to the nearest whole number; at least 1."""
    root = isqrt(length)
    return max(1, root + (length > root * (root + 1)))
