"""The repair of BatchNorm's running statistics under recompute."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.workload import Workload


def repair_batchnorm(workload: Workload, applied: Applied) -> int:
    """Set the momentum of BatchNorm in recomputed blocks so that its running statistics come out as without recompute.

    Each of the r recomputes updates them again, towards the same batch: with momentum 1 - (1 - m)^(1 / (1 + r)) the
    1 + r updates make one with m; for r = 1 that is 1 - sqrt(1 - m). Returns how many layers were repaired. The count
    num_batches_tracked still grows with every update. Raises Unsupported where the momentum cannot make up for it.
    """
    layers = _updated_again(workload, applied)
    for layer, times in layers.items():
        layer.momentum = 1 - (1 - (layer.momentum or 0.0)) ** (1 / (1 + times))
    return len(layers)


def is_repairable(workload: Workload, applied: Applied) -> bool:
    """Whether repair_batchnorm would find something to do, and could."""
    try:
        return bool(_updated_again(workload, applied))
    except Unsupported:
        return False


def _updated_again(workload: Workload, applied: Applied) -> dict[_NormBase, int]:
    """Returns each BatchNorm layer with running statistics, and how often a step updates it again."""
    layer_times: dict[_NormBase, list[int]] = {}
    for index, name in enumerate(workload.blocks):
        for layer in filter(_has_statistics, workload.block(name).modules()):
            layer_times.setdefault(layer, []).append(applied.recomputes.get(index, 0))  # type: ignore[arg-type]  # by filter
    again = {layer: times for layer, times in layer_times.items() if any(times)}
    norms = [name for name in applied.kept if "batch_norm" in name]
    if again and norms:
        raise Unsupported(f"--repair-batchnorm: {norms[0]} is saved, so that its statistics are updated once as it is")
    if any(len(times) > 1 for times in again.values()):  # the recompute takes the blocks in another order
        raise Unsupported("--repair-batchnorm: several blocks share a BatchNorm layer, which no momentum repairs")
    return {layer: times for layer, (times,) in again.items()}


def _has_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is not None
