"""Where autograd writes in place and does not for fake tensors, which it takes for subclasses: knows nothing of steps.

Its formulas have both ways (`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp).
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
NODES = {  # whose backward has these as its in-place form
    aten.index_put.default: ("IndexBackward0",),
    aten.scatter_add.default: ("GatherBackward0",),
    aten.scatter.src: (
        *("SortBackward0", "SortBackward1", "TopkBackward0", "MaxBackward0", "MinBackward0"),
        *("KthvalueBackward0", "MedianBackward1", "ModeBackward0"),
    ),
    aten.index_add.default: ("IndexSelectBackward0",),
    aten.sub.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
    aten.mul.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
}


def is_in_place(func: Any, args: Any) -> bool:
    """Whether autograd writes to the first argument, were it not fake; it has the result's shape then.

    Where gradients are on, it does not: the backward is differentiated itself, or this is a recompute, not its formula.
    """
    nodes = NODES.get(func)
    if nodes is None or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in nodes and _is_as_large(args[0], args[1])


def _is_as_large(written: torch.Tensor, other: Any) -> bool:
    """Not so of a weight of the positives, with which the target is multiplied."""
    is_factor = isinstance(other, torch.Tensor) and other.is_floating_point()
    return not is_factor or torch.broadcast_shapes(written.shape, other.shape) == written.shape
