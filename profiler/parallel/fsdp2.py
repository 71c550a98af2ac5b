"""FSDP2: parameters, gradients and optimizer state are sharded, and each block's parameters gathered while it runs."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from profiler.workload import Workload


def distribute(workload: Workload, mesh: DeviceMesh, *, reshard: bool = True) -> Workload:
    """`fully_shard` on every block, then on the whole; each rank holds its part of every parameter.

    `reshard` is PyTorch's `reshard_after_forward` of the blocks: without it, what the forward gathered stays until the
    backward has used it.
    """
    for name in workload.blocks:
        fully_shard(workload.module.get_submodule(name), mesh=mesh, reshard_after_forward=reshard)
    fully_shard(workload.module, mesh=mesh)
    return workload
