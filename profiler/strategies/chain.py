"""Runs of consecutive blocks computed under one checkpoint: the mechanism, which knows nothing of where to cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from profiler.workload import Workload

Checkpoint = Callable[..., Any]


def checkpoint_runs(workload: Workload, runs: list[range], *, checkpoint: Checkpoint | None = None) -> None:
    """Change the module in place so that each run of its blocks is recomputed in the backward.

    `runs` are ranges of indices into `workload.blocks` that do not overlap. When the module's own forward calls the
    first block of a run, the whole run is computed under the checkpoint; its calls of the others then return what
    they are given. So the forward that strings the blocks together, a Sequential or a loop, stays as it is.
    """
    for run in runs:
        blocks = [workload.module.get_submodule(workload.blocks[index]) for index in run]
        _Run(blocks, checkpoint or checkpoint_without_reentry)


def checkpoint_without_reentry(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """PyTorch's checkpoint as it should be called.

    The reentrant kind leaves gradients missing, in silence, where no input of the first segment needs one.
    """
    return checkpoint(function, *arguments, use_reentrant=False, **keywords)


class _Run:
    """One checkpointed run. Each of its blocks gets a forward of its own, which asks `_inside` what to do."""

    def __init__(self, blocks: list[nn.Module], checkpoint: Checkpoint) -> None:
        self._blocks = blocks
        self._checkpoint = checkpoint
        self._inside = False
        first, *others = blocks
        first.forward = self._wrap(first.forward, self._enter)
        for block in others:
            block.forward = self._wrap(block.forward, _pass_on)

    def _wrap(self, inside: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **keywords: (inside if self._inside else outside)(*arguments, **keywords)

    def _enter(self, *arguments: Any, **keywords: Any) -> Any:
        return self._checkpoint(self._compute, *arguments, **keywords)

    def _compute(self, value: Any, *arguments: Any, **keywords: Any) -> Any:
        self._inside = True
        try:
            for block in self._blocks:
                value = block(value, *arguments, **keywords)
        finally:
            self._inside = False
        return value


def _pass_on(value: Any, *arguments: Any, **keywords: Any) -> Any:
    return value
