"""The bytes that are still held after some work, counted by PyTorch alone."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Storages(TorchDispatchMode):
    """Watches every storage that an operator returns while it is entered, forward and backward, by weak references."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def alive(self) -> int:
        """The bytes of those that are still held."""
        return sum(nbytes for reference, nbytes in self._made.values() if not reference.expired())


def bytes_left_by(work: Callable[[], object]) -> int:
    """The bytes of all storages that were made in the work and are still held after it."""
    with Storages() as storages:
        work()
    gc.collect()
    return storages.alive()


def bytes_left_on_cuda_by(work: Callable[[], object]) -> int:
    """The bytes that are still held after the work, as the caching allocator counts them."""
    before = _held_on_cuda()
    work()
    return _held_on_cuda() - before


def _held_on_cuda() -> int:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # which torch keeps for each thread before 2.15
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()
