"""Tells where autograd would write in place if tensors were not fake: it treats fake tensors as subclasses.

The same is so under any dispatch mode. Its formulas have an in-place and an out-of-place form
(`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp), and so has the sum of gradients of a tensor
that was used more than once (torch/csrc/autograd/input_buffer.cpp).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

out_of_place_linear = F.linear
_ADDS_IN_PLACE: ContextVar[bool] = ContextVar("_ADDS_IN_PLACE", default=False)

aten = torch.ops.aten
SUM = aten.add.Tensor
TENSOR_HOLDERS, STORAGE_HOLDERS = 5, 2  # reference counts if only autograd holds it, those of this call included
NODES = {  # by operator: backward nodes that have it in an in-place form
    aten.index_put.default: ("IndexBackward0",),
    aten.scatter_add.default: ("GatherBackward0",),
    aten.scatter.src: (
        *("SortBackward0", "SortBackward1", "TopkBackward0", "MaxBackward0", "MinBackward0"),
        *("KthvalueBackward0", "MedianBackward1", "ModeBackward0"),
    ),
    aten.index_add.default: ("IndexSelectBackward0",),
    aten.masked_fill.Scalar: ("MaximumBackward0", "MinimumBackward0"),
    aten.sub.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
    aten.mul.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
}
ADDING = ("VarMeanBackward0", "StdMeanBackward0")  # nodes whose formulas themselves add, out of place


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias in place if the product does not include it (aten/src/ATen/native/Linear.cpp).

    Not under a dispatch mode that a plain step has, too, as that of selective checkpoints.
    """
    is_plain = all(type(mode).__module__.startswith("profiler.") for mode in _get_current_dispatch_mode_stack())
    token = _ADDS_IN_PLACE.set(is_plain)
    try:
        return out_of_place_linear(input, weight, bias)
    finally:
        _ADDS_IN_PLACE.reset(token)


def is_sum_in_place(func: Any, args: Any) -> bool:
    """Whether this is a sum to write in place; its result is an alias of the first term."""
    return func is SUM and _ADDS_IN_PLACE.get()


def is_in_place(func: Any, args: Any) -> bool:
    """Whether autograd would write to the first argument if it were not fake; it then has the result's shape.

    False if gradients are enabled: the backward itself is differentiated, or this is a recompute, not a formula.
    """
    if (func is not SUM and func not in NODES) or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    if node is None:
        return False
    if func is SUM:
        adds_itself = isinstance(node, BackwardCFunction) or node.name() in ADDING
        return not adds_itself and _is_sum(*args)
    return node.name() in NODES[func] and _is_as_large(args[0], args[1])


def _is_sum(first: torch.Tensor, second: Any) -> bool:
    """Whether this sums two gradients, of which only autograd holds the first, without overlapping elements."""
    if not isinstance(second, torch.Tensor) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    num_holders = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return first._use_count() <= TENSOR_HOLDERS and num_holders <= STORAGE_HOLDERS and all(first.stride())


def _is_as_large(written: torch.Tensor, factor: Any) -> bool:
    """Whether the result has the shape of `written`, unlike a smaller `pos_weight` that is multiplied by the target."""
    is_factor = isinstance(factor, torch.Tensor) and factor.is_floating_point()
    return not is_factor or torch.broadcast_shapes(written.shape, factor.shape) == written.shape
