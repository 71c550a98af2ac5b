"""Every block by itself: knows nothing of models."""

from __future__ import annotations

from profiler.record import Applied
from profiler.strategies.chain import checkpoint_runs
from profiler.workload import Workload


def apply(workload: Workload) -> Applied:
    """Recomputes every block by itself: what Hugging Face and FSDP call full."""
    length = len(workload.blocks)
    checkpoint_runs(workload, [[index] for index in range(length)])
    return Applied(split=f"{length} of {length}", recomputes=dict.fromkeys(range(length), 1))
