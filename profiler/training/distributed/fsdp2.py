"""FSDP2: parameters, gradients and optimizer state are sharded, and each block's parameters gathered while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from profiler.core.errors import Unsupported
from profiler.core.trace_data import GATHERED
from profiler.training.distributed import gloo
from profiler.training.workload import Workload, storage_bytes


def distribute(workload: Workload, mesh: DeviceMesh, *, reshard: bool = True) -> Workload:
    """`fully_shard` on every block, then on the whole; each rank holds its part of every parameter.

    `reshard` is PyTorch's `reshard_after_forward` of the blocks: without it, what the forward gathered stays until the
    backward has used it. Raises Unsupported for parameters that several blocks share, and for an optimizer that is made
    already.
    """
    _refuse(workload)
    blocks = list(dict.fromkeys(workload.module.get_submodule(name) for name in workload.blocks))
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    if workload.module not in blocks:
        fully_shard(workload.module, mesh=mesh)
    if mesh.device_type == "cpu" and dist.get_backend(mesh.get_group()) == dist.Backend.GLOO:
        for module in workload.module.modules():
            if isinstance(module, FSDPModule):
                gloo.let_go(module)
    root: Any = workload.module

    @contextmanager
    def syncing(is_last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(is_last)
        yield

    def held() -> dict[str, int]:
        return {GATHERED: storage_bytes(_gathered(workload.module))}

    return msgspec.structs.replace(workload, syncing=syncing, held=held, gathered=_followed(workload.module))


def _refuse(workload: Workload) -> None:
    if isinstance(workload.optimizer, torch.optim.Optimizer):
        raise Unsupported("FSDP2 shards the parameters, and the model's optimizer holds them whole: return a function")
    owner: dict[nn.Parameter, str] = {}
    for name, parameter in workload.module.named_parameters(remove_duplicate=False):
        block = next((block for block in workload.blocks if name.startswith(f"{block}.")), "")
        if owner.setdefault(parameter, block) != block:
            names = " and ".join(f"'{holder}'" if holder else "the rest" for holder in (owner[parameter], block))
            raise Unsupported(f"FSDP2 shards '{name}' once, and {names} share it")


def _followed(module: nn.Module) -> Callable[[], int]:
    """Watch all-gathers from now on; return a function that gives the most bytes live since its last call."""
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, storage_bytes(_gathered(module)))

    def tell() -> int:
        nonlocal most
        peak, most = most, 0
        return peak

    for group in _groups(module):
        group.wait_for_unshard = _then(group.wait_for_unshard, look)
    return tell


def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _groups(module: nn.Module) -> list[Any]:
    states: list[Any] = [
        submodule._get_fsdp_state() for submodule in module.modules() if isinstance(submodule, FSDPModule)
    ]
    groups = [  # torch 2.11 has one for each state
        group
        for state in states
        for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    ]
    return [group for group in groups if group is not None]


def _gathered(module: nn.Module) -> list[torch.Tensor]:
    """Return the outputs of all-gathers; freed ones have storages of no bytes."""
    return [
        tensor
        for group in _groups(module)
        for parameter in group.fsdp_params
        for tensor in parameter.all_gather_outputs
    ]
