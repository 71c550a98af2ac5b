"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged bucket by bucket."""

from __future__ import annotations

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from profiler.workload import Workload


def distribute(workload: Workload, mesh: DeviceMesh, *, bucket_mib: float = 25.0, views: bool = False) -> Workload:
    """A whole model on each rank; gradients are averaged in buckets, of which they may be `views`.

    `bucket_mib` is PyTorch's `bucket_cap_mb`, which it counts in MiB.
    """
    on_cuda = mesh.device_type == "cuda"
    module = DistributedDataParallel(
        workload.module,
        device_ids=[torch.cuda.current_device()] if on_cuda else None,
        process_group=mesh.get_group(),
        bucket_cap_mb=bucket_mib,
        gradient_as_bucket_view=views,
    )
    return msgspec.structs.replace(workload, module=module, blocks=tuple(f"module.{name}" for name in workload.blocks))
