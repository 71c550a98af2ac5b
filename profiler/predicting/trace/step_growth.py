"""Records, for every storage of a traced step, how it grows with the batch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from profiler.predicting.trace.batch_growth import BatchGrowth, Grown, size_of, tensors_of
from profiler.predicting.trace.tracer import StorageLife, Tracer


class StepGrowth:
    """Records how the storages of a step grow; a `batch_size` of None is inferred from the batch."""

    def __init__(self, tracer: Tracer, batch: Sequence[torch.Tensor], batch_size: int | None) -> None:
        self._tracer = tracer
        self._stand_ins: dict[int, StorageLife] = {}  # by the address of the stand-in storage
        size = size_of(batch, batch_size)
        self._growth = BatchGrowth(size, self._grown) if size else None
        for tensor in batch:
            life = tracer.life(tensor)
            if life:
                life.grown = self._growth.of_batch(tensor) if self._growth else None

    def note(self, func: Any, args: Any, kwargs: Any, out: Any, made: Sequence[StorageLife | None]) -> None:
        """Record how the storages that an operator made grow."""
        results = list(tensors_of(out))
        all_grown = (
            self._growth.of_results(func, args, kwargs or {}, results) if self._growth else [None] * len(results)
        )
        for tensor, grown in zip(results, all_grown, strict=True):
            life = self._tracer.life(tensor)
            if life and life in made:
                life.grown = grown

    def power(self, life: StorageLife) -> int:
        """Return the power of the batch size with which a storage grows; 1 if unknown."""
        return 1 if life.grown is None or not self._growth else len(life.grown)

    def stand_in(self, tensor: torch.Tensor, life: StorageLife) -> None:
        """Let a tensor that is unpacked for autograd grow as the storage that was saved."""
        storage = tensor.untyped_storage()
        self._stand_ins[storage._cdata] = life
        weakref.finalize(storage, self._stand_ins.pop, storage._cdata)

    def _grown(self, tensor: torch.Tensor) -> Grown | None:
        """Return how a tensor's storage grows; None if unknown."""
        life = self._tracer.life(tensor) or self._stand_ins.get(tensor.untyped_storage()._cdata)
        return life.grown if life else None
