"""Strategies that are wrong on purpose: what the equality pass must catch. Knows nothing of who looks."""

from __future__ import annotations

from typing import Any, Literal

from torch.utils.checkpoint import checkpoint

from profiler.record import Applied
from profiler.strategies.chain import checkpoint_runs
from profiler.workload import Workload


def apply(workload: Workload, *, fault: Literal["reentrant", "random-state"]) -> Applied:
    """Checkpoints wrongly: reentrant from an input without gradient, or with fresh random numbers in the recompute."""

    def wrong(function: Any, *arguments: Any) -> Any:
        if fault == "reentrant":
            return checkpoint(function, *arguments, use_reentrant=True)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    count = len(workload.blocks) - 1
    checkpoint_runs(workload, [range(count)], checkpoint=wrong)
    return Applied(split=f"{count}+1")
