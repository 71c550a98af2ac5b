"""Lever `micro-batches`: forward and backward on parts of the batch, whose gradients are summed."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from profiler.core.case import Case
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.kept_state import kept
from profiler.training.workload import Workload, tensors


def apply(workload: Workload, case: Case, *, n: Count) -> tuple[Workload, Applied]:
    """Splits the batch into n parts with a forward and a backward each, whose gradients are summed.

    Where the loss is a mean over targets that are not ignored, each part counts by how many it has. Raises Unsupported
    where BatchNorm would see other statistics, and where the batch has no n samples.
    """
    if case.parallel:
        raise Unsupported("micro-batches: ranks have --accumulate and a smaller --batch-size")
    norms = [part for part in workload.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if any(norm.training for norm in norms):
        raise Unsupported("micro-batches: BatchNorm would see the statistics of parts of the batch")
    leaves, form = pytree.tree_flatten(workload.batch)
    size = next((leaf.shape[0] for leaf in tensors(workload.batch) if leaf.ndim), 0)
    if size < n:
        raise Unsupported(f"the batch has {size} samples, which are not {n} parts")
    split = [
        leaf.tensor_split(n) if isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (size,) else [leaf] * n
        for leaf in leaves
    ]
    batches = [pytree.tree_unflatten(list(part), form) for part in zip(*split, strict=True)]
    rows = [float(len(part)) for part in torch.arange(size, device="cpu").tensor_split(n)]
    has_values = not (case.is_rehearsed or case.is_predicted)
    counts = [_count(workload, batch) for batch in batches] if has_values else [None]
    if all(count == "sum" for count in counts):
        weights = [1.0] * n
    else:
        known = [float(count) for count in counts if isinstance(count, int)]
        weights = _shares(known if len(known) == n else rows)
    parts = tuple(zip(batches, weights, strict=True))
    return msgspec.structs.replace(workload, parts=parts), Applied(
        split=f"{n} micro-batches", rounds=True, draws_apart=True
    )


def _shares(counts: list[float]) -> list[float]:
    return [count / (sum(counts) or 1.0) for count in counts]


def _count(workload: Workload, batch: Any) -> int | str | None:
    """Return over how many targets the loss of a batch is a mean; "sum" if it is a sum, None if neither is seen."""
    with torch.no_grad(), kept(workload.module), _Reductions() as seen:
        workload.loss(workload.module, batch)
    return seen.found[0] if len(set(seen.found)) == 1 else None


class _Reductions(TorchFunctionMode):
    """Notes what the losses of torch.nn.functional reduce over."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int | str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            getattr(func, "__name__", "") in ("cross_entropy", "nll_loss")
            and kwargs.get("reduction", "mean") == "mean"
            and len(args) > 1
        ):
            target = args[1]
            ignored = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
            if not target.is_floating_point():
                self.found.append(int((target != ignored).sum()))
        elif kwargs.get("reduction") == "sum":
            self.found.append("sum")
        return func(*args, **kwargs)
