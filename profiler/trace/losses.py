"""What losses take besides their value, where fake kernels know only the value: knows nothing of steps.

ATen writes all elements before it reduces them: into temporaries, or into the result, whose storage stays as large when
it is resized to one element (aten/src/ATen/native/Loss.cpp, aten/src/ATen/native/cuda/Loss.cu).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

aten = torch.ops.aten
NONE, MEAN = 0, 1  # at::Reduction
IN_THE_RESULT = (aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss)
TEMPORARIES = {  # of all elements, besides the result: where it is reduced, and where it is not
    aten.mse_loss: (1, 0),
    aten.smooth_l1_loss: (1, 0),
    aten.huber_loss: (1, 0),
    aten.binary_cross_entropy_with_logits: (2, 1),
    aten.soft_margin_loss_backward: (2, 2),
}


def temporary_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """What an operator takes while it runs, in bytes; 0 for what is no loss."""
    known = TEMPORARIES.get(func._overloadpacket)
    if known is None:
        return 0
    num_temporaries = known[0 if _is_reduced(func, args, kwargs or {}) else 1]
    dtype: torch.dtype = reduce(torch.promote_types, (one.dtype for one in args if isinstance(one, torch.Tensor)))
    return num_temporaries * element_shape(args).numel() * dtype.itemsize


def element_shape(args: Any) -> torch.Size:
    """Of a loss with these arguments before it is reduced."""
    found: torch.Size = torch.broadcast_shapes(*(one.shape for one in args if isinstance(one, torch.Tensor)))
    return found


def _is_reduced(func: Any, args: Any, kwargs: Any) -> bool:
    place = [one.name for one in func._schema.arguments].index("reduction")
    chosen = args[place] if len(args) > place else kwargs.get("reduction", MEAN)
    return bool(chosen != NONE)
