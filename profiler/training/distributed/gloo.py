"""gloo collectives that release their tensors before they return; those of FSDP2 work in place.

PyTorch's all-gather and reduce-scatter on gloo each copy everything, which NCCL does not; here every rank's part is
broadcast or reduced in place. gloo works in threads of its own, and reports completion before it releases the tensors.
If such a thread holds the last reference, it frees the memory, and the profiler does not see that, since it follows
only the thread of the step: the bytes would seem to stay allocated. So each call waits until gloo has released the
tensors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

PATIENCE = 1.0  # seconds to wait for gloo's threads to release a tensor; after that its bytes do seem to stay


def let_go(module: FSDPModule) -> None:
    """Make a module of `fully_shard` use these collectives."""
    gather: Any = _AllGather()
    scatter: Any = _ReduceScatter()
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(scatter)


def let_buffers_go(module: DistributedDataParallel) -> None:
    """Make DDP's broadcast of its buffers, before each forward, wait until gloo has released them."""
    group = module.process_group

    def broadcast(buffers: Sequence[torch.Tensor], buffer_size: int, authoritative_rank: int = 0) -> None:
        for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
            alike = [buffer for buffer in buffers if buffer.dtype == dtype]
            flat = torch.cat([buffer.reshape(-1) for buffer in alike])
            held = _holders(flat)
            dist.broadcast(flat, group=group, group_src=authoritative_rank)
            _await(flat, held)
            for buffer, part in zip(alike, flat.split([buffer.numel() for buffer in alike]), strict=True):
                buffer.copy_(part.view_as(buffer))

    setattr(module, "_distributed_broadcast_coalesced", broadcast)  # noqa: B010  a method


class _Allocates:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Allocates):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        """Broadcast every rank's part; FSDP's all_gather_copy_in has already put this rank's into `output_tensor`."""
        held = _holders(output_tensor)
        for rank, part in enumerate(output_tensor.chunk(dist.get_world_size(group))):
            dist.broadcast(part, group=group, group_src=rank)
        del part
        _await(output_tensor, held)


class _ReduceScatter(_Allocates):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        held = _holders(input_tensor)
        parts = input_tensor.chunk(dist.get_world_size(group))
        for rank, part in enumerate(parts):
            dist.reduce(part, group=group, group_dst=rank, op=op)
        output_tensor.copy_(parts[dist.get_rank(group)])
        del part, parts
        _await(input_tensor, held)


def _holders(tensor: torch.Tensor) -> int:
    """Return the number of references to the tensor and to its storage."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) + tensor._use_count()


def _await(tensor: torch.Tensor, held: int) -> None:
    until = time.monotonic() + PATIENCE
    while _holders(tensor) > held and time.monotonic() < until:
        time.sleep(0)
