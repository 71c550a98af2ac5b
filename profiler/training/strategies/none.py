"""Strategy `none`: the baseline, which checkpoints nothing."""

from __future__ import annotations

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import unswitched
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Keeps everything: the baseline of every comparison."""
    return Applied(switch=unswitched)
