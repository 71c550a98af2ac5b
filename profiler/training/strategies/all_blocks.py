"""Strategy `all`: checkpoints every block by itself."""

from __future__ import annotations

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Recomputes every block by itself: what Hugging Face and FSDP call full."""
    length = len(workload.blocks)
    switch = checkpoint_segments(workload, [[index] for index in range(length)])
    return Applied(split=f"{length} of {length}", recomputes=dict.fromkeys(range(length), 1), switch=switch)
