"""What is allocated while a model is built, before its first step: knows nothing of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from profiler.core.trace_data import Allocation, Building
from profiler.predicting.trace.tracer import Hidden, Life, Tracer


class Builder:
    """Follows the storages of everything that runs under it: parameters, the batch, forwards that only look.

    What they leave to the allocator, free blocks and blocks in use, is where the first step begins.
    """

    def __init__(self, *, device: str, hidden: Hidden | None = None) -> None:
        self._tracer = Tracer(nn.Module(), device=device, hidden=hidden)
        self._left: list[Life] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follow what runs within."""
        with self._tracer:
            yield
        self._left = [life for life in self._tracer.lives if life.died is None]

    def unheld(self, held: Sequence[Life | None]) -> list[torch.UntypedStorage]:
        """The storages that are still there and in no life of `held`: what the loss or the module keeps by itself."""
        storages = [life.watch() for life in self._left if life not in held and life.died is None and life.watch]
        return [storage for storage in storages if storage is not None]

    def life(self, tensor: torch.Tensor) -> Life | None:
        """The life of a tensor's storage; None where it was not made under this builder."""
        return self._tracer.life(tensor)

    def building(self, lives: Sequence[Life | None]) -> Building:
        """What was followed. `lives` has, for each storage that is there before the step, its life in the building."""
        left, last = set(self._left), len(self._tracer.operators)
        places = {life: place for place, life in enumerate(lives) if life in left}
        return Building(
            allocations=tuple(
                Allocation(life.nbytes, life.born, last if life in left else life.died or 0, life.operator, "", "", "")
                for life in self._tracer.lives
            ),
            operators=tuple(self._tracer.operators),
            places=tuple(places.get(life) for life in self._tracer.lives),
        )
