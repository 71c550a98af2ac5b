"""Keeps recomputes from updating BatchNorm's running statistics again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.called_blocks import CalledBlock
from profiler.training.workload import Workload

HELD = "_held_statistics"


def repaired(workload: Workload, applied: Applied) -> Applied:
    """Repair BatchNorm as `repair_batchnorm` does; return `applied` with a note on it.

    Raises Unsupported if blocks are recomputed and no block of the workload has such a layer.
    """
    count = repair_batchnorm(workload, applied)
    if applied.recomputes and not any(_norms(workload)):
        raise Unsupported("--repair-batchnorm: no BatchNorm with running statistics is in a block")
    why = "no BatchNorm is in a checkpointed block" if applied.recomputes else "no block is known to run again"
    held = f"the running statistics of {count} BatchNorm layers are held while these are recomputed"
    text = held if count else f"--repair-batchnorm did nothing: {why}"
    return msgspec.structs.replace(applied, notes=(*applied.notes, Note(code="GCP010", text=text)))


def with_note(workload: Workload, applied: Applied, *, mended_by: str) -> Applied:
    """Return `applied` with a note if a step updates the running statistics of BatchNorm a second time."""
    if not is_repairable(workload, applied):
        return applied
    text = f"BatchNorm updates its statistics again when it is recomputed; {mended_by} mends it"
    return msgspec.structs.replace(applied, notes=(*applied.notes, Note(code="GCP004", text=text)))


def repair_batchnorm(workload: Workload, applied: Applied) -> int:
    """Make recomputes leave the running statistics of BatchNorm, and its counts of batches, as the forward left them.

    Each layer of a recomputed block is hooked once, however often and in whatever order it runs. Returns their number.
    """
    layers = _updated_again(workload, applied)
    for layer in layers:
        layer.register_forward_pre_hook(_hold)
        layer.register_forward_hook(_release, always_call=True)  # a recompute stops at the last tensor that it needs
    return len(layers)


def is_repairable(workload: Workload, applied: Applied) -> bool:
    """Whether `repair_batchnorm` would repair anything."""
    return bool(_updated_again(workload, applied))


def _hold(layer: _NormBase, _: Any) -> None:
    """Freeze the statistics (momentum 0) and the batch count if this runs in a backward, which makes it a recompute.

    The kernel still gets the statistics, since a checkpoint needs as many saved tensors as the forward had.
    """
    in_backward = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
    if in_backward and layer.training:
        layer.__dict__[HELD] = layer.momentum, layer.num_batches_tracked
        layer.momentum, layer.num_batches_tracked = 0.0, None


def _release(layer: _NormBase, *_: Any) -> None:
    if HELD in layer.__dict__:
        layer.momentum, layer.num_batches_tracked = layer.__dict__.pop(HELD)


def _updated_again(workload: Workload, applied: Applied) -> tuple[_NormBase, ...]:
    """Return the BatchNorm layers with running statistics that a step would update again, each once."""
    return tuple(dict.fromkeys(layer for index, layer in _norms(workload) if applied.recomputes.get(index)))


def _norms(workload: Workload) -> Iterator[tuple[int, _NormBase]]:
    """Yield the layers of each block that keep running statistics, with the block's index."""
    for index, name in enumerate(workload.blocks):
        block = workload.block(name)
        called = block.called if isinstance(block, CalledBlock) else block
        for layer in called.modules() if isinstance(called, nn.Module) else ():
            if isinstance(layer, _NormBase) and layer.track_running_stats:
                yield index, layer
