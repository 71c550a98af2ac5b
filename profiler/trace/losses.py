"""What losses take besides their value, where fake kernels know only the value: knows nothing of steps.

ATen writes all elements before it reduces them: into temporaries, or into the result, whose storage stays as large when
it is resized to one element (aten/src/ATen/native/Loss.cpp, aten/src/ATen/native/cuda/Loss.cu).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

aten = torch.ops.aten
IN_THE_RESULT = (aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss)
TEMPORARIES = {  # of all elements, besides the result
    aten.mse_loss: 1,
    aten.smooth_l1_loss: 1,
    aten.huber_loss: 1,
    aten.binary_cross_entropy_with_logits: 2,
    aten.soft_margin_loss_backward: 2,
}


def temporary_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """What an operator takes while it runs, in bytes; 0 for what is no loss."""
    num_temporaries = TEMPORARIES.get(func._overloadpacket, 0)
    if not num_temporaries:
        return 0
    if not func._overloadpacket.__name__.endswith("_backward") and _reduction(func, args, kwargs or {}) == 0:
        num_temporaries -= 1  # one of them is the result
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    return (
        num_temporaries * shape(tensors).numel() * reduce(torch.promote_types, (one.dtype for one in tensors)).itemsize
    )


def shape(args: Any) -> torch.Size:
    """Of all elements of a loss with these arguments."""
    found: torch.Size = torch.broadcast_shapes(*(one.shape for one in args if isinstance(one, torch.Tensor)))
    return found


def _reduction(func: Any, args: Any, kwargs: Any) -> int:
    """0 is none, 1 mean, 2 sum."""
    names = [one.name for one in func._schema.arguments]
    place = names.index("reduction")
    found: int = args[place] if len(args) > place else kwargs.get("reduction", 1)
    return found
