"""Strategy `every`: checkpoints every k-th block by itself."""

from __future__ import annotations

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments
from profiler.training.workload import Workload


def apply(workload: Workload, *, k: Count = 2) -> Applied:
    """Recomputes every k-th block by itself: the k-th, the 2k-th and so on.

    Raises Unsupported where there are fewer than k blocks.
    """
    length = len(workload.blocks)
    chosen = range(k - 1, length, k)
    if not chosen:
        raise Unsupported(f"only {length} blocks for every {k}th")
    switch = checkpoint_segments(workload, [[index] for index in chosen])
    return Applied(split=f"{len(chosen)} of {length}", recomputes=dict.fromkeys(chosen, 1), switch=switch)
