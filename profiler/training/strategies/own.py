"""Strategy `own`: the model's own checkpoints, as its author wrote them."""

from __future__ import annotations

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import unswitched
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Leaves on the checkpoints that the model calls itself; under `none` and all others they are plain calls."""
    return Applied(keeps_own=True, switch=unswitched)
