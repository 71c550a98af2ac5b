"""What the ranks that train together tell each other: knows nothing of what they measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")


class Group:
    """One process that trains by itself: the other ranks of `Ranks` are none."""

    rank = 0
    size = 1
    mesh: DeviceMesh | None = None

    def wait(self) -> None:
        """Until all ranks are here."""

    def gather(self, found: T) -> list[T]:
        """What each rank gives, in order of the ranks, on each of them."""
        return [found]

    def agree(self, found: T) -> T:
        """What the first rank gives, on each of them."""
        return self.gather(found)[0]

    def largest(self, found: T, size: Callable[[T], float]) -> T:
        """What is largest of what the ranks give, on each of them; of several, the first rank's."""
        return max(self.gather(found), key=size)


class Ranks(Group):
    """All ranks of this process's default group. They talk by gloo, whatever their gradients go by."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self._talk: Any = dist.new_group(backend="gloo")

    def wait(self) -> None:
        dist.barrier(group=self._talk)

    def gather(self, found: T) -> list[T]:
        told: list[T | None] = [None] * self.size
        dist.all_gather_object(told, found, group=self._talk)
        return told  # type: ignore[return-value]  # each rank gave its own
