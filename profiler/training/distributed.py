"""One model on several ranks: DistributedDataParallel, FSDP2, and gloo collectives that release their tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from profiler.core.errors import Unsupported
from profiler.core.schedule import DDP_SETTLING
from profiler.core.trace_data import BUCKETS, GATHERED
from profiler.training.workload import Workload, rounded, storage_bytes

PATIENCE = 1.0  # seconds to wait for gloo's threads to release a tensor; after that its bytes do seem to stay


def ddp(
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
        _let_buffers_go(module)

    def loss(given: nn.Module, batch: Any) -> torch.Tensor:
        return workload.loss(module, batch)

    def syncing(is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else module.no_sync()

    def held() -> dict[str, int]:
        """The buckets once they are rebuilt in the order of the gradients; with `unused` the first ones are not."""
        logged = {} if views else module._get_ddp_logging_data()
        sizes = str(logged.get("bucket_sizes" if unused else "rebuilt_bucket_sizes", ""))
        kind = next(module.parameters()).device.type
        return {BUCKETS: sum(rounded(int(size), kind) for size in sizes.split(",") if size.strip())}

    return msgspec.structs.replace(workload, loss=loss, syncing=syncing, held=held, settling=DDP_SETTLING)


def fsdp2(workload: Workload, mesh: DeviceMesh, *, reshard: bool = True) -> Workload:
    """`fully_shard` on every block, then on the whole; each rank holds its part of every parameter.

    `reshard` is PyTorch's `reshard_after_forward` of the blocks: without it, what the forward gathered stays until the
    backward has used it. Raises Unsupported for parameters that several blocks share, and for an optimizer that is made
    already.
    """
    if isinstance(workload.optimizer, torch.optim.Optimizer):
        raise Unsupported("FSDP2 shards the parameters, and the model's optimizer holds them whole: return a function")
    owner: dict[nn.Parameter, str] = {}
    for name, parameter in workload.module.named_parameters(remove_duplicate=False):
        block = next((block for block in workload.blocks if name.startswith(f"{block}.")), "")
        if owner.setdefault(parameter, block) != block:
            names = " and ".join(f"'{holder}'" if holder else "the rest" for holder in (owner[parameter], block))
            raise Unsupported(f"FSDP2 shards '{name}' once, and {names} share it")
    blocks = list(dict.fromkeys(workload.module.get_submodule(name) for name in workload.blocks))
    for sharded in blocks:
        fully_shard(sharded, mesh=mesh, reshard_after_forward=reshard)
    if workload.module not in blocks:
        fully_shard(workload.module, mesh=mesh)
    if mesh.device_type == "cpu" and dist.get_backend(mesh.get_group()) == dist.Backend.GLOO:
        for module in workload.module.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_AllGather())  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(_ReduceScatter())  # type: ignore[arg-type]
    root: Any = workload.module

    @contextmanager
    def syncing(is_last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(is_last)
        yield

    def held() -> dict[str, int]:
        return {GATHERED: storage_bytes(_gathered(workload.module))}

    return msgspec.structs.replace(workload, syncing=syncing, held=held, gathered=_followed(workload.module))


def _followed(module: nn.Module) -> Callable[[], int]:
    """Watch all-gathers from now on; return a function that gives the most bytes live since its last call."""
    most = 0

    def tell() -> int:
        nonlocal most
        peak, most = most, 0
        return peak

    def wait(own: Callable[[], None]) -> None:
        nonlocal most
        own()
        most = max(most, storage_bytes(_gathered(module)))

    for group in _groups(module):
        group.wait_for_unshard = partial(wait, group.wait_for_unshard)
    return tell


def _groups(module: nn.Module) -> list[Any]:
    states: list[Any] = [part._get_fsdp_state() for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [[*getattr(one, "_fsdp_param_groups", ()), getattr(one, "_fsdp_param_group", None)] for one in states]
    return [group for several in groups for group in dict.fromkeys(several) if group is not None]  # one: torch 2.11


def _gathered(module: nn.Module) -> list[torch.Tensor]:
    """Return the outputs of all-gathers; freed ones have storages of no bytes."""
    parameters = [parameter for group in _groups(module) for parameter in group.fsdp_params]
    return [tensor for parameter in parameters for tensor in parameter.all_gather_outputs]


def _let_buffers_go(module: DistributedDataParallel) -> None:
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
