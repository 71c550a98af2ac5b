"""Checks whether blocks can run together under one checkpoint: each feeds the next one, and nothing else."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from profiler.core.errors import Unsupported
from profiler.training.checkpointing.observed_forward import Observation, observe
from profiler.training.checkpointing.routed_block import own_class
from profiler.training.workload import Workload


def refuse_unlinked(workload: Workload, pairs: list[tuple[int, int]]) -> Observation | None:
    """Raise Unsupported if a block does not feed only the next one; return the forward that was observed, if any."""
    if workload.batch is None and _is_chain(workload, pairs):
        return None
    seen = observe(workload)
    for feeding, fed in pairs:
        if fed != feeding + 1 or not seen.linked[feeding]:
            names = f"'{workload.blocks[feeding]}' and '{workload.blocks[fed]}'"
            reason = "the second takes more than the first's output, or that output is also used elsewhere"
            if fed in seen.takes:
                reason = (
                    f"the second takes {seen.takes[fed]}, but blocks of one segment can only pass tensors to each other"
                )
            raise Unsupported(f"{names} cannot be run together: {reason}")
    return seen


def _is_chain(workload: Workload, pairs: list[tuple[int, int]]) -> bool:
    """Whether nested Sequentials alone, each module there once, run the pairs in a row; then no forward is needed."""
    names = _strung(workload.module, workload.blocks)
    modules = {workload.module.get_submodule(name) for name in names}
    behind = set(pairwise(names))
    return len(modules) == len(names) and all((workload.blocks[a], workload.blocks[b]) in behind for a, b in pairs)


def _strung(module: nn.Module, blocks: tuple[str, ...], name: str = "") -> list[str]:
    """Return the names of what nested Sequentials run, in order, down to the blocks."""
    if name in blocks or own_class(module).forward is not nn.Sequential.forward:
        return [name]
    children = [(f"{name}.{key}" if name else key, child) for key, child in module._modules.items() if child]
    return [path for key, child in children for path in _strung(child, blocks, key)]
