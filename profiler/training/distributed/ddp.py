"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged bucket by bucket."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from profiler.core.errors import Unsupported
from profiler.core.schedule import DDP_SETTLING
from profiler.core.trace_data import BUCKETS
from profiler.training.distributed.gloo import let_buffers_go
from profiler.training.workload import Workload, rounded


def distribute(
    workload: Workload, mesh: DeviceMesh, *, bucket_mib: float = 25.0, views: bool = False, unused: bool = False
) -> Workload:
    """A whole model on each rank; gradients are averaged in buckets, of which they may be `views`.

    `bucket_mib` is PyTorch's `bucket_cap_mb`, which it counts in MiB; `unused` its `find_unused_parameters`. Raises
    Unsupported where nothing is trained.
    """
    if bucket_mib <= 0:
        raise Unsupported(f"DDP: a bucket cannot hold {bucket_mib:g} MiB")
    if not any(parameter.requires_grad for parameter in workload.module.parameters()):
        raise Unsupported("DDP: no parameter of the model needs a gradient")
    module = DistributedDataParallel(
        workload.module,
        device_ids=[torch.cuda.current_device()] if mesh.device_type == "cuda" else None,
        process_group=mesh.get_group(),
        bucket_cap_mb=bucket_mib,
        gradient_as_bucket_view=views,
        find_unused_parameters=unused,
    )
    if dist.get_backend(module.process_group) == "gloo":
        let_buffers_go(module)

    def loss(given: nn.Module, batch: Any) -> torch.Tensor:
        return workload.loss(module, batch)

    def syncing(is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else module.no_sync()

    def held() -> dict[str, int]:
        return {BUCKETS: 0 if views else _bucket_bytes(module, stays=unused)}

    return msgspec.structs.replace(workload, loss=loss, syncing=syncing, held=held, settling=DDP_SETTLING)


def _bucket_bytes(module: DistributedDataParallel, *, stays: bool) -> int:
    """Return the bytes of DDP's buckets once they are rebuilt in the order of the gradients; 0 before that.

    With `stays`, as when DDP looks for unused parameters, the first buckets are never rebuilt, and count at once.
    """
    logged = module._get_ddp_logging_data()
    sizes = str(logged.get("bucket_sizes" if stays else "rebuilt_bucket_sizes", ""))
    kind = next(module.parameters()).device.type
    return sum(rounded(int(size), kind) for size in sizes.split(",") if size.strip())
