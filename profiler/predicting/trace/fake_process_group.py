"""Runs one rank of many alone, on PyTorch's fake process group, in which every collective completes at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket, Reducer
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as data_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from profiler.core.errors import Unsupported

AT_START = ("_verify_param_shape_across_processes", "_sync_module_states")  # of DDP: they read values, which fakes lack


class FakeRank:
    """The mesh of all ranks, with this rank's DDP modules and the buckets that it has reduced, by their index."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.buckets: dict[int, torch.Tensor] = {}
        self.modules: list[DistributedDataParallel] = []

    def refuse_unused(self) -> None:
        """Raise Unsupported, after a step, for an unused parameter that DDP would refuse in the next step."""
        for name, parameter in (named for module in self.modules for named in module.module.named_parameters()):
            if parameter.requires_grad and parameter.grad is None:
                raise Unsupported(f"DDP: '{name}' gets no gradient, which it refuses; ddp:unused=true lets it be")

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Reduce a bucket and return a future of it: the future of the fake group has no tensor."""
        buffer = self.buckets[bucket.index()] = bucket.buffer()
        distributed.all_reduce(buffer)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future


@contextmanager
def fake_rank(ranks: int) -> Iterator[FakeRank]:
    """Act as the first of so many ranks, which holds the most if shards are uneven.

    For fake tensors only: exchanged values are wrong. The mesh itself is real.
    """
    with ExitStack() as stack:
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        stack.callback(distributed.destroy_process_group)
        rank = FakeRank(init_device_mesh("cpu", (ranks,)))
        for name in AT_START:
            stack.enter_context(mock.patch.object(data_parallel, name, _nothing))
        stack.enter_context(mock.patch.object(_fsdp_param, "_chunk_with_empty", _Chunks))
        stack.enter_context(mock.patch.object(Reducer, "_rebuild_buckets", _as_they_are))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", _answered(rank)))
        yield rank


class _Chunks:
    """A lazy `torch.chunk`: FSDP2 uses two of thousands of chunks."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._most = -(-tensor.shape[dim] // num_chunks)

    def __getitem__(self, place: int) -> torch.Tensor:
        size = self._tensor.shape[self._dim]
        start = min(size, place * self._most)
        return self._tensor.narrow(self._dim, start, min(self._most, size - start))


def _answered(rank: FakeRank) -> Any:
    build = DistributedDataParallel.__init__

    def built(module: DistributedDataParallel, *arguments: Any, **keywords: Any) -> None:
        build(module, *arguments, **keywords)
        if module.find_unused_parameters:
            raise Unsupported("DDP's search for unused parameters reads values: it cannot be predicted")
        rank.modules.append(module)
        module.register_comm_hook(None, lambda state, bucket: rank.exchange(bucket))  # DDP would check annotations

    return built


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Stands in for a check over all ranks."""


def _as_they_are(reducer: Reducer) -> bool:
    """Keep DDP from rebuilding its buckets after the first step; their total size would be the same."""
    return False
