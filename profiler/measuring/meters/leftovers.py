"""Reads the bytes that earlier passes of a trial leave in memory for the next one."""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from profiler.measuring.devices import Device
from profiler.training.optimizers.torch_optim import hooks_of, let_go
from profiler.training.workload import Workload, allocated_bytes, dense_parts, tensors


class Leftovers:
    """The bytes that were allocated in one pass and are still allocated in a later one.

    On CUDA the caching allocator counts them. The CPU's allocator counts only under a profiler, which would have to run
    through every pass, the timed one too. So there the parameters, buffers and batch of every model are watched by weak
    references to their storages. That costs nothing while a step runs, and finds every graph that is kept, since a
    graph holds the parameters that it leads to. What else such a graph holds is missed: the bytes are a lower bound.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = device.held_bytes()  # held by others, before the first pass
        self._watched: dict[int, tuple[StorageWeakRef, int]] = {}
        self._hooked: list[tuple[weakref.ref[nn.Module], list[weakref.ref[nn.Parameter]]]] = []  # models with hooks
        self._at_start: tuple[int, int] | None = None  # all bytes and those of models; None once a pass has built one
        self.nbytes = 0  # that earlier passes left allocated in the current one
        self.model_bytes = 0  # of these, the bytes of models and their batches
        self.most_bytes = 0  # the largest `nbytes` of any pass

    def start(self) -> None:
        """Count the bytes held as a pass begins; the device was released before.

        Parameters of a freed model that only their own hooks keep alive are freed first: a user's program, which builds
        its model once, does not leak them.
        """
        for module, parameters in self._hooked:
            if module() is None:
                let_go(parameters)
        self._at_start = self.held_bytes(), self.held_model_bytes()

    def built(self, workload: Workload) -> None:
        """Watch a model that was built. Storages of an earlier pass that it reuses do not count as left."""
        hooked = [weakref.ref(parameter) for parameter in workload.module.parameters() if hooks_of(parameter)]
        self._hooked += [(weakref.ref(workload.module), hooked)] if hooked else []
        module = workload.module
        held = [*module.parameters(), *module.buffers(), *tensors(workload.batch)]
        storages = {storage._cdata: storage for storage in _behind(held)}
        again = sum(self._watched[place][1] for place in self._alive() & storages.keys())
        gradients = [parameter.grad for parameter in workload.module.parameters() if parameter.grad is not None]
        gradient_bytes = sum(map(allocated_bytes, _behind(gradients)))  # of a reused model: a new one has none
        self._watched |= {
            place: (StorageWeakRef(storage), allocated_bytes(storage)) for place, storage in storages.items()
        }
        if self._at_start:
            nbytes, model_bytes = self._at_start
            self.model_bytes = max(0, model_bytes - again)
            self.nbytes = max(self.model_bytes, nbytes - again - gradient_bytes)
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self._at_start = None

    def in_peak(self, held_before: int) -> int:
        """Return the bytes of earlier passes in the peak of a pass that has ended and began with `held_before`.

        If the held bytes did not grow in that pass, they are a cache that is made once and reused: only models count.
        """
        return self.nbytes if self.held_bytes() > held_before else self.model_bytes

    def held_bytes(self) -> int:
        """Return the bytes held now beyond those before the first pass, as far as the device counts them."""
        held = self._device.held_bytes()
        return self.held_model_bytes() if held is None or self._before is None else max(0, held - self._before)

    def held_model_bytes(self) -> int:
        """Return the bytes of parameters, buffers and batches that are still alive, of all models that were built."""
        return sum(self._watched[place][1] for place in self._alive())

    def _alive(self) -> set[int]:
        return {place for place, (reference, _) in self._watched.items() if not reference.expired()}


def _behind(dense_or_sharded: list[torch.Tensor]) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in dense_or_sharded for part in dense_parts(tensor.detach())]
