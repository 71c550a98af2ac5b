"""What operators take besides their results, where fake kernels know only the results.

Losses write all elements before they reduce them: into temporaries, or into the result, whose storage stays as large
when it is resized to one element (aten/src/ATen/native/Loss.cpp, aten/src/ATen/native/cuda/Loss.cu). Folds are made
like their input before they are resized (Im2Col.cpp, Col2Im.cpp, cuda/Im2Col.cu, cuda/Col2Im.cu beside them). Masks
that index become places (aten/src/ATen/native/IndexingUtils.h).
"""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

import torch

from profiler.predicting.trace.kernel_bytes import tensor_bytes

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
FOLDS = (aten.im2col, aten.col2im)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
PLACE_BYTES = 8  # an int64


def temporary_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Returns the bytes that an operator takes while it runs; 0 for operators without a rule here."""
    if func._overloadpacket in FOLDS:
        num_copies = (not args[0].is_contiguous()) + _grows(func, *args)
        return num_copies * tensor_bytes(args[0])
    if func._overloadpacket in INDEXING:
        masks = (index.constant for index in args[1] if is_known_mask(index))
        return sum(int(mask.count_nonzero()) * mask.ndim * PLACE_BYTES for mask in masks)
    numbers = TEMPORARIES.get(func._overloadpacket)
    if numbers is None:
        return 0
    num_temporaries = numbers[0 if _is_reduced(func, args, kwargs or {}) else 1]
    dtypes = (tensor.dtype for tensor in args if isinstance(tensor, torch.Tensor))
    dtype: torch.dtype = reduce(torch.promote_types, dtypes)
    return num_temporaries * _element_shape(args).numel() * dtype.itemsize


def stored_shape(func: Any, args: Any, out: torch.Tensor) -> torch.Size:
    """Returns the shape of all elements in the result's storage, mostly the result's own."""
    if func._overloadpacket in IN_THE_RESULT:
        return _element_shape(args)
    if func._overloadpacket in FOLDS and args[0].numel() > out.numel():
        shape: torch.Size = args[0].shape
        return shape
    return out.shape


def is_known_mask(index: torch.Tensor | None) -> bool:
    """Whether an index is a mask whose values are known."""
    is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
    return is_mask and getattr(index, "constant", None) is not None


def _element_shape(args: Any) -> torch.Size:
    """Returns the shape of a loss before it is reduced."""
    shape: torch.Size = torch.broadcast_shapes(*(tensor.shape for tensor in args if isinstance(tensor, torch.Tensor)))
    return shape


def _grows(func: Any, input: torch.Tensor, *folding: list[int]) -> bool:
    """Whether the result has more elements than what is taken: `folding` is of torch.nn.Unfold, or of torch.nn.Fold."""
    if func._overloadpacket is aten.col2im:
        sides, kernels, *_ = folding
        return bool(prod(sides) > prod(kernels) * input.shape[-1])
    places = [
        (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for side, kernel, dilation, padding, stride in zip(input.shape[-2:], *folding, strict=True)
    ]
    return bool(prod(places) * prod(folding[0]) > prod(input.shape[-2:]))


def _is_reduced(func: Any, args: Any, kwargs: Any) -> bool:
    place = [argument.name for argument in func._schema.arguments].index("reduction")
    chosen = args[place] if len(args) > place else kwargs.get("reduction", MEAN)
    return bool(chosen != NONE)
