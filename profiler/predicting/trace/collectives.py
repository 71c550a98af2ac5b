"""What several ranks exchange in a step, told apart from what each makes for itself: knows of no process group."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from profiler.core.trace_data import BUCKETS, GATHERED
from profiler.predicting.trace.tracer import Tracer

EXCHANGED = {  # the operator: which of its arguments is made for it, and what that is
    "c10d._allgather_base_": (0, GATHERED),
    "c10d._reduce_scatter_base_": (1, BUCKETS),
}


LOOK = "_propagate_tensor_meta_non_cached"


def parts() -> tuple[type, ...]:
    """The types of tensors of which each rank holds a part: none where nobody has imported them."""
    module = sys.modules.get("torch.distributed.tensor")
    return (module.DTensor,) if module else ()


class Exchange:
    """Names what a tracer sees: whole parameters that are gathered, buckets of gradients that are reduced.

    FSDP2 gives the bytes of whole parameters back, and takes them again, by resizing their storages, which is no
    operator. To know the shape of a result, DTensors run operators on whole tensors, which nobody ever holds.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def follow(self) -> Iterator[None]:
        """See storages that are resized within, and no shapes that are looked for."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", self._resizing()))
            module = sys.modules.get("torch.distributed.tensor._sharding_prop")
            if module:
                looking = self._looking(module.ShardingPropagator._propagate_tensor_meta_non_cached)
                stack.enter_context(mock.patch.object(module.ShardingPropagator, LOOK, looking))
            yield

    def see(self, operator: str, arguments: Any) -> None:
        """Name the storage of an exchange that has just run."""
        if operator not in EXCHANGED:
            return
        place, category = EXCHANGED[operator]
        life = self._tracer.life(arguments[place])
        if life:
            life.category = category

    def _resizing(self) -> Any:
        resize, tracer = torch.UntypedStorage.resize_, self._tracer

        def resized(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            life = tracer.resize(storage, lambda: resize(storage, size))
            if life:
                life.category = GATHERED
            return storage

        return resized

    def _looking(self, look: Any) -> Any:
        def looked(propagator: Any, schema: Any) -> Any:
            with self._tracer.paused():
                return look(propagator, schema)

        return looked
