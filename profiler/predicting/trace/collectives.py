"""Traces what only a step of several ranks does: collectives, and elementwise operators on DTensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.own_thread import replaced
from profiler.core.trace_data import BUCKETS, GATHERED
from profiler.predicting.trace.tracer import Tracer
from profiler.training.optimizers.wrapped import wrapped
from profiler.training.workload import local

EXCHANGED = {  # by operator: the place of the argument that is allocated for it, and its category
    "c10d._allgather_base_": (0, GATHERED),
    "c10d._reduce_scatter_base_": (1, BUCKETS),
}

LOOK = "_propagate_tensor_meta_non_cached"
aten = torch.ops.aten
FOREACH = "_foreach_"


def sharded_types() -> tuple[type, ...]:
    """Return the types of sharded tensors; none if DTensor has not been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return (module.DTensor,) if module else ()


class Exchange:
    """Sets the categories of storages in a tracer: gathered parameters, and buckets of reduced gradients.

    FSDP2 frees and reallocates gathered parameters by resizing their storages, which is no operator. To infer result
    shapes, DTensor runs operators on whole tensors, which are never allocated.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Track storages that are resized within, and leave out operators that only propagate shapes."""
        with ExitStack() as stack:
            stack.enter_context(replaced(torch.UntypedStorage, resize_=self._resizing()))
            module = sys.modules.get("torch.distributed.tensor._sharding_prop")
            if module:
                looking = self._looking(module.ShardingPropagator._propagate_tensor_meta_non_cached)
                stack.enter_context(replaced(module.ShardingPropagator, **{LOOK: looking}))
            yield

    def see(self, operator: str, arguments: Any) -> None:
        """Set the category of the storage that a collective has just used."""
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


def on_parts(optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
    """Context manager in which the optimizer's elementwise operators run directly on the shards of DTensors.

    DTensor's dispatch gives the same results, but took most of the time of a trace with hundreds of parameters.
    """
    return entered_in_steps(optimizer, [_OnShards(kind) for kind in sharded_types()])


@contextmanager
def entered_in_steps(optimizer: torch.optim.Optimizer, modes: Sequence[Any]) -> Iterator[None]:
    """Enter the modes during each step of the optimizer, or of one that it wraps or that hooks run."""
    at_work: list[Any] = []  # the optimizers that are stepping, the outermost first

    def enter(part: Any, *given: Any) -> None:
        for mode in () if at_work else modes:
            mode.__enter__()
        at_work.append(part)

    def leave(*given: Any) -> None:
        at_work.pop()
        for mode in () if at_work else modes:
            mode.__exit__(None, None, None)

    with ExitStack() as stack:
        for part in wrapped(optimizer):
            stack.callback(part.register_step_pre_hook(enter).remove)
            stack.callback(part.register_step_post_hook(leave).remove)
        yield


class _OnShards(TorchDispatchMode):
    """Runs elementwise operators on local shards. `kind` is the type of sharded tensors."""

    def __init__(self, kind: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = kind

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # for the reason given in CachingFakeMode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if self._kind not in types or keywords or not _is_elementwise(func):
            return func(*args, **keywords)
        sharded = [tensor for tensor in pytree.tree_leaves(args) if isinstance(tensor, self._kind)]
        if len({(tensor.device_mesh, tensor.placements) for tensor in sharded}) > 1:
            return func(*args)
        out = func(*pytree.tree_map_only(self._kind, local, args))
        if func._schema.is_mutable:
            return args[0] if out is not None else None
        return self._whole(out, args[0])

    def _whole(self, out: Any, like: Any) -> Any:
        """Wrap results as shards of tensors that are as large as `like`."""
        if isinstance(out, (list, tuple)):
            return [self._whole(shard, source) for shard, source in zip(out, like, strict=True)]
        if not isinstance(like, self._kind):
            return out
        return self._kind.from_local(
            out, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


@cache
def _is_elementwise(func: Any) -> bool:
    name = func._overloadpacket.__name__
    if func.namespace != "aten" or not name.startswith(FOREACH):
        return func.namespace == "aten" and torch.Tag.pointwise in func.tags
    single = getattr(aten, name.removeprefix(FOREACH).rstrip("_"), None)
    return single is not None and any(
        torch.Tag.pointwise in getattr(single, overload).tags for overload in single.overloads()
    )
