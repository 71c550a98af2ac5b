"""Strategy `_planted`: faults made on purpose, which the passes must catch."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.autograd.graph import saved_tensors_hooks

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments, unswitched
from profiler.training.checkpointing.own_checkpoints import checkpoint
from profiler.training.workload import Workload


def apply(workload: Workload, *, fault: Literal["reentrant", "random-state", "leak"]) -> Applied:
    """Checkpoints wrongly: reentrant from an input without gradient, or with fresh random numbers in the recompute.

    `leak` checkpoints nothing, but looks at the model in a way that keeps it for good.
    """
    if fault == "leak":
        _keep_for_good(workload)
        return Applied(switch=unswitched)

    def wrong(function: Any, *arguments: Any) -> Any:
        if fault == "reentrant":
            return checkpoint(function, *arguments, use_reentrant=True)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    count = len(workload.blocks) - 1
    switch = checkpoint_segments(workload, [range(count)], checkpoint=wrong)
    return Applied(split=f"{count}+1", switch=switch)


def _keep_for_good(workload: Workload) -> None:
    """Leak a graph: run a forward with a saved-tensor hook that references the loss, a cycle through C++."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return tensor.detach(), kept

    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(pack, lambda packed: packed[0]):
        kept.append(workload.loss(workload.module, workload.batch))
