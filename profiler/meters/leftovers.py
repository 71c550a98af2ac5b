"""What the passes of a trial leave in memory, beside which the next one is measured: knows nothing of strategies."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from profiler.devices import Device
from profiler.workload import Workload, allocated_bytes, dense_parts, tensors


class Leftovers:
    """Bytes that were made in one pass and are still there in a later one.

    On CUDA the caching allocator counts what is allocated. The CPU's keeps no balance outside of a profiler, whose
    events would have to be followed over whole passes, the time's too. There, parameters, buffers and batch of every
    model that was built are watched by weak references to their storages. That is exact, costs nothing while a step
    runs, and sees every graph that is kept, since a graph holds the parameters that it leads to; it does not see what
    such a graph holds besides, so that its bytes are the least that is left.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = device.held_bytes()
        self._watched: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_start: tuple[int, int] | None = None  # of a pass that has built nothing yet
        self.nbytes = 0  # left for the pass at work by those before it
        self.model_bytes = 0  # those of them that models are made of

    def start(self) -> None:
        """A pass begins: nothing is at work, and collectors and caches are empty."""
        self._at_start = self.held_bytes(), self.held_model_bytes()

    def built(self, workload: Workload) -> None:
        """Follow a model. Where it is that of an earlier pass once more, it is used again and not left."""
        storages = {storage._cdata: storage for storage in _storages(workload)}
        again = sum(self._watched[place][1] for place in self._alive() & storages.keys())
        gradients = sum(map(allocated_bytes, _gradients(workload)))  # which a new model has none of
        self._watched |= {
            place: (StorageWeakRef(storage), allocated_bytes(storage)) for place, storage in storages.items()
        }
        if self._at_start:
            nbytes, model_bytes = self._at_start
            self.model_bytes = max(0, model_bytes - again)
            self.nbytes = max(self.model_bytes, nbytes - again - gradients)
            self._at_start = None

    def held_bytes(self) -> int:
        """All that is there and was not before the first pass, as far as the device can tell."""
        held = self._device.held_bytes()
        return self.held_model_bytes() if held is None or self._before is None else max(0, held - self._before)

    def held_model_bytes(self) -> int:
        """Parameters, buffers and batches of the models that were built."""
        return sum(self._watched[place][1] for place in self._alive())

    def _alive(self) -> set[int]:
        return {place for place, (reference, _) in self._watched.items() if not reference.expired()}


def _storages(workload: Workload) -> list[torch.UntypedStorage]:
    module = workload.module
    return _behind([*module.parameters(), *module.buffers(), *tensors(workload.batch)])


def _gradients(workload: Workload) -> list[torch.UntypedStorage]:
    return _behind([parameter.grad for parameter in workload.module.parameters() if parameter.grad is not None])


def _behind(found: list[torch.Tensor]) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in found for part in dense_parts(tensor.detach())]
