"""Where autograd writes in place, but not for fake tensors, which it takes for subclasses.

Its formulas have both ways (`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp), and so has the sum
of the gradients of what was used more than once (torch/csrc/autograd/input_buffer.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

_ADDS_IN_PLACE: ContextVar[bool] = ContextVar("_ADDS_IN_PLACE", default=False)

aten = torch.ops.aten
SUM = aten.add.Tensor
TENSOR_HOLDERS, STORAGE_HOLDERS = 5, 2  # where only autograd has it: the others are its way to here
NODES = {  # whose backward has these as its in-place form
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
ADDING = ("VarMeanBackward0", "StdMeanBackward0")  # whose formulas themselves add, to a new tensor


@contextmanager
def adding_in_place() -> Iterator[None]:
    """Write a forward's sums into their first term."""
    token = _ADDS_IN_PLACE.set(True)
    try:
        yield
    finally:
        _ADDS_IN_PLACE.reset(token)


def is_sum_in_place(func: Any, args: Any) -> bool:
    """Whether a forward's sum is written in place now; its result is another tensor of the first term's storage."""
    return func is SUM and _ADDS_IN_PLACE.get()


def is_in_place(func: Any, args: Any) -> bool:
    """Whether autograd writes to the first argument, were it not fake; it has the result's shape then.

    Where gradients are on, it does not: the backward is differentiated itself, or this is a recompute, not its formula.
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
    """Whether nothing else holds the gradient that came first, and its elements do not overlap."""
    if not isinstance(second, torch.Tensor) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    num_holders = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return first._use_count() <= TENSOR_HOLDERS and num_holders <= STORAGE_HOLDERS and all(first.stride())


def _is_as_large(written: torch.Tensor, factor: Any) -> bool:
    """Not so of a weight of the positives, with which the target is multiplied."""
    is_factor = isinstance(factor, torch.Tensor) and factor.is_floating_point()
    return not is_factor or torch.broadcast_shapes(written.shape, factor.shape) == written.shape
