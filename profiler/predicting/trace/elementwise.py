"""Elementwise operators on tensors of which each rank holds a part, done on the parts: knows nothing of steps.

DTensors come to the same, but look for it: with hundreds of parameters, most of a trace was that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.predicting.trace.collectives import parts
from profiler.training.workload import local

aten = torch.ops.aten
FOREACH = "_foreach_"


@contextmanager
def on_parts(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it, the optimizer's steps do so."""
    modes = [_OnParts(kind) for kind in parts()]

    def enter(*given: Any) -> None:
        for mode in modes:
            mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(*given: Any) -> None:
        for mode in modes:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    before, after = optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()


class _OnParts(TorchDispatchMode):
    """`kind` is the type of a tensor of which each rank holds a part."""

    def __init__(self, kind: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = kind

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as QuickFakes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if self._kind not in types or keywords or not _is_elementwise(func):
            return func(*args, **keywords)
        whole = [one for one in pytree.tree_leaves(args) if isinstance(one, self._kind)]
        if len({(one.device_mesh, one.placements) for one in whole}) > 1:
            return func(*args)
        out = func(*pytree.tree_map_only(self._kind, local, args))
        if func._schema.is_mutable:
            return args[0] if out is not None else None
        return self._whole(out, args[0])

    def _whole(self, out: Any, like: Any) -> Any:
        """Results as parts of tensors as large as those they were made of, one by one where there are several."""
        if isinstance(out, (list, tuple)):
            return [self._whole(one, other) for one, other in zip(out, like, strict=True)]
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
