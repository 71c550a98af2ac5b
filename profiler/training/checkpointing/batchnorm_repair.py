"""The repair of BatchNorm's running statistics under recompute."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.call_routes import CalledBlock
from profiler.training.workload import Workload


def repaired(workload: Workload, applied: Applied) -> Applied:
    """Repair BatchNorm as `repair_batchnorm` does; returns what was applied with a note of it.

    Raises Unsupported also where blocks are recomputed and none of the workload's blocks has such a layer.
    """
    count = repair_batchnorm(workload, applied)
    again = _updated_again(workload, applied)
    if applied.recomputes and not any(_norms(workload)):
        raise Unsupported("--repair-batchnorm: no BatchNorm with running statistics is in a block")
    told = [f"the momentum of {count} BatchNorm layers was set to 1 - sqrt(1 - m) or its like"] if count else []
    if averaged := len(again) - count:
        told.append(f"{averaged} with momentum=None need no repair: a recompute leaves their average over all batches")
    why = "no BatchNorm is in a checkpointed block" if applied.recomputes else "no block is known to run again"
    text = "; ".join(told) or f"--repair-batchnorm did nothing: {why}"
    return msgspec.structs.replace(applied, notes=(*applied.notes, Note(code="GCP010", text=text)))


def repair_batchnorm(workload: Workload, applied: Applied) -> int:
    """Set the momentum of BatchNorm in recomputed blocks so that its running statistics come out as without recompute.

    Each of the r recomputes updates them again, towards the same batch: with momentum 1 - (1 - m)^(1 / (1 + r)) the
    1 + r updates make one with m; for r = 1 that is 1 - sqrt(1 - m). Without a momentum the statistics are the average
    over all updates, which 1 + r equal ones for each batch leave as it is. Returns how many layers were repaired. The
    count num_batches_tracked still grows with every update. Raises Unsupported where no momentum makes up for it.
    """
    count = 0
    for layer, times in _updated_again(workload, applied).items():
        if layer.momentum is not None:
            layer.momentum = 1 - (1 - layer.momentum) ** (1 / (1 + times))
            count += 1
    return count


def is_repairable(workload: Workload, applied: Applied) -> bool:
    """Whether repair_batchnorm would find something to do, and could."""
    try:
        return any(layer.momentum is not None for layer in _updated_again(workload, applied))
    except Unsupported:
        return False


def _updated_again(workload: Workload, applied: Applied) -> dict[_NormBase, int]:
    """Returns each BatchNorm layer with running statistics, and how often a step updates it again."""
    layer_times: dict[_NormBase, list[int]] = {}
    for index, layer in _norms(workload):
        layer_times.setdefault(layer, []).append(applied.recomputes.get(index, 0))
    again = {layer: times for layer, times in layer_times.items() if any(times)}
    norms = [name for name in applied.kept if "batch_norm" in name]
    if again and norms:
        raise Unsupported(f"--repair-batchnorm: {norms[0]} is saved, so that its statistics are updated once as it is")
    for layer, times in again.items():  # the recompute takes the blocks in another order, which an average is free of
        if len(times) > 1 and (layer.momentum is not None or len(set(times)) > 1):
            raise Unsupported("--repair-batchnorm: several blocks share a BatchNorm layer, which no momentum repairs")
    return {layer: times[0] for layer, times in again.items()}


def _norms(workload: Workload) -> Iterator[tuple[int, _NormBase]]:
    """Each block's index with its layers that keep running statistics."""
    for index, name in enumerate(workload.blocks):
        block = workload.block(name)
        called = block.called if isinstance(block, CalledBlock) else block
        for layer in called.modules() if isinstance(called, nn.Module) else ():
            if isinstance(layer, _NormBase) and layer.track_running_stats:
                yield index, layer
