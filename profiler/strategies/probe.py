"""What each block of a chain saves for the backward, found by one forward that keeps none of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from profiler.strategies.split import ChainBytes
from profiler.workload import Workload, storage_bytes, tensors


def chain_bytes(workload: Workload) -> ChainBytes:
    """Bytes saved by block, each storage counted where it is first saved; parameters, buffers and batch are not.

    Runs one forward. Leaves buffers, gradients and random state as they were.
    """
    counter = _Counter(workload)
    buffers = [buffer.clone() for buffer in workload.module.buffers()]
    own = {parameter.device for parameter in workload.module.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=own), saved_tensors_hooks(counter.pack, _never):
        workload.loss(workload.module, workload.batch)
    counter.remove()
    with torch.no_grad():
        for buffer, before in zip(workload.module.buffers(), buffers, strict=True):
            buffer.copy_(before)
    count = len(workload.blocks)
    return ChainBytes(saved=tuple(counter.saved[:count]), inputs=tuple(counter.inputs), tail=counter.saved[count])


class _Counter:
    """Follows which block is at work by hooks on the blocks."""

    def __init__(self, workload: Workload) -> None:
        self.saved = [0] * (len(workload.blocks) + 1)
        self.inputs = [0] * len(workload.blocks)
        on_host = all(parameter.device.type == "cpu" for parameter in workload.module.parameters())
        self._random_state = torch.get_rng_state().nbytes if on_host else 0  # what every checkpoint keeps besides
        self._at: int | None = None  # before the chain, nothing of what is saved can be checkpointed
        known = [*workload.module.parameters(), *workload.module.buffers(), *tensors(workload.batch)]
        self._seen = {tensor.untyped_storage()._cdata: StorageWeakRef(tensor.untyped_storage()) for tensor in known}
        self._handles = []
        for index, name in enumerate(workload.blocks):
            block = workload.module.get_submodule(name)
            self._handles.append(block.register_forward_pre_hook(self._enter(index)))
        self._handles.append(block.register_forward_hook(self._leave))

    def pack(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        seen = self._seen.get(storage._cdata)
        if self._at is not None and (seen is None or seen.expired()):
            self.saved[self._at] += storage.nbytes()
        self._seen[storage._cdata] = StorageWeakRef(storage)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, index: int) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            self._at = index
            self.inputs[index] = storage_bytes(tensors(arguments)) + self._random_state

        return hook

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._at = len(self.inputs)


def _never(packed: object) -> torch.Tensor:
    raise AssertionError("a probe's forward has no backward")
