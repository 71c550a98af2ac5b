"""Strategy `first`: checkpoints the first n blocks, each by itself."""

from __future__ import annotations

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments
from profiler.training.workload import Workload


def apply(workload: Workload, *, n: Count = 8) -> Applied:
    """Recomputes the first n blocks, each by itself (Megatron's "block" method).

    Raises Unsupported where there are fewer than n blocks.
    """
    length = len(workload.blocks)
    if n > length:
        raise Unsupported(f"only {length} blocks for the first {n}")
    switch = checkpoint_segments(workload, [[index] for index in range(n)])
    return Applied(split=f"{n} of {length}", recomputes=dict.fromkeys(range(n), 1), switch=switch)
