"""The repair of BatchNorm under recompute: knows nothing of strategies but how often each block is computed again."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _NormBase

from profiler.workload import Workload


def repair_batchnorm(workload: Workload, recomputes: dict[int, int]) -> int:
    """Set the momentum of BatchNorm in recomputed blocks so that its running statistics come out as without recompute.

    Each of the r recomputes updates them again, towards the same batch: with momentum 1 - (1 - m)^(1 / (1 + r)) the
    1 + r updates make one with m; for r = 1 that is 1 - sqrt(1 - m). Returns how many layers were repaired. The count
    num_batches_tracked still grows with every update.
    """
    repaired = 0
    for index, times in recomputes.items():
        for layer in workload.module.get_submodule(workload.blocks[index]).modules():
            if isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is not None:
                layer.momentum = 1 - (1 - layer.momentum) ** (1 / (1 + times))
                repaired += 1
    return repaired
