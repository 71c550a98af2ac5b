"""The baseline: knows nothing of checkpointing."""

from __future__ import annotations

from profiler.record import Applied
from profiler.workload import Workload


def apply(workload: Workload) -> Applied:
    """Keeps everything: the baseline of every comparison."""
    return Applied()
