"""Computes what operators allocate besides their results, which fake kernels do not show: temporaries and copies.

Losses write all elements before they reduce them: into temporaries, or into the result, whose storage keeps its size
when it is resized to one element (aten/src/ATen/native/Loss.cpp, aten/src/ATen/native/cuda/Loss.cu). Folds are
allocated like their input before they are resized (Im2Col.cpp, Col2Im.cpp, cuda/Im2Col.cu, cuda/Col2Im.cu in that
folder). Masks used as indices become positions (aten/src/ATen/native/IndexingUtils.h).

Kernels that need a memory format copy arguments in other formats (`Tensor::contiguous`), and hold the copies until they
return. The files named by the rules for copies are in aten/src/ATen/native.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from profiler.predicting.trace.kernel_bytes import Requests, request, tensor_bytes, tensor_request

aten = torch.ops.aten
NONE, MEAN = 0, 1  # at::Reduction
IN_THE_RESULT = (aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss)
TEMPORARIES = {  # number of full-size temporaries besides the result: with a reduction, without one
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
    """Return the bytes of an operator's temporaries; 0 for operators without a rule here."""
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
    """Return the shape for which the result's storage was allocated, mostly the result's own."""
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
    """Return the shape of a loss before it is reduced."""
    shape: torch.Size = torch.broadcast_shapes(*(tensor.shape for tensor in args if isinstance(tensor, torch.Tensor)))
    return shape


def _grows(func: Any, input: torch.Tensor, *folding: list[int]) -> bool:
    """Whether the result has more elements than the input; `folding` are the arguments of nn.Unfold or nn.Fold."""
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


def copied_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the most bytes that an operator's copies take at once; 0 for operators without a rule here."""
    count = COPIES.get(func._overloadpacket)
    return count(*args, **(kwargs or {})) if count else 0


def straightened(tensor: torch.Tensor | None, memory_format: torch.memory_format = torch.contiguous_format) -> int:
    """Return the bytes of a copy in this memory format; 0 if the tensor has it already."""
    if tensor is None or tensor.is_contiguous(memory_format=memory_format):
        return 0
    return tensor_request(tensor)


def _pool(input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Copy of the input. Sources: cuda/DilatedMaxPool2d.cu, cuda/AveragePool2d.cu."""
    return straightened(input, suggest_memory_format(input))


def _pool_backward(gradient: torch.Tensor, input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Copies of the gradient, the input and the indices of the maxima; sources as for `_pool`."""
    memory_format = suggest_memory_format(input)
    places = options[-1] if options and isinstance(options[-1], torch.Tensor) else named.get("indices")
    return Requests(*(straightened(tensor, memory_format) for tensor in (gradient, input, places)))


def _adaptive_pool(input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Copy of the input. Source: cuda/AdaptiveAveragePooling.cu."""
    return straightened(input, suggest_memory_format(input))


def _adaptive_pool_backward(gradient: torch.Tensor, input: torch.Tensor) -> int:
    """Copy of the gradient; the channels-last kernel reads any format. Source as for `_adaptive_pool`."""
    return 0 if suggest_memory_format(input) == torch.channels_last else straightened(gradient)


def _layer_norm(input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Copy of the input. Source: layer_norm_cuda in cuda/layer_norm_kernel.cu."""
    return straightened(input)


def _layer_norm_backward(gradient: torch.Tensor, input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Copies of gradient and input. Source: layer_norm_backward_cuda in cuda/layer_norm_kernel.cu."""
    return straightened(gradient) + straightened(input)


def _batch_norm_backward(gradient: torch.Tensor, input: torch.Tensor, weight: Any, *options: Any, **named: Any) -> int:
    """Copy of the gradient in the input's memory format, for cuDNN (tools/autograd/derivatives.yaml)."""
    return straightened(gradient, suggest_memory_format(input)) if is_cudnn_norm(input, weight) else 0


def is_cudnn_norm(input: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Whether cuDNN runs a batch norm in training: `_select_batch_norm_backend` in Normalization.cpp."""
    if input.dim() < 3 or weight is None or torch.bfloat16 in (input.dtype, weight.dtype):
        return False
    return input.dtype != torch.float16 or weight.dtype == torch.float32


def _softmax_backward(gradient: torch.Tensor, out: torch.Tensor, *options: Any, **named: Any) -> int:
    """The product of gradient and result, and contiguous copies of the product and the result (cuda/SoftMax.cu)."""
    product = torch.empty_like(gradient, device="meta")
    return tensor_request(product) + straightened(product) + straightened(out)


def _safe_softmax(input: torch.Tensor, *options: Any, **named: Any) -> int:
    """Masks of -inf inputs and of rows that are all -inf, and the scalar 0 written to those rows (SoftMax.cpp)."""
    rows = input.numel() // max(input.shape[options[0]], 1)
    return request(input.numel()) + request(rows) + request(input.itemsize)


def _roll(input: torch.Tensor, shifts: list[int], dims: list[int] | None = None) -> int:
    """Results of all dimensions but the last; for one dimension, a dense input (TensorTransformations.h, cuda/*.cu)."""
    return tensor_request(input) * max(len(dims or ()) - 1, 0) or straightened(input)


def _sum(input: torch.Tensor, *options: Any, dtype: torch.dtype | None = None, **named: Any) -> int:
    """Integers and booleans are first cast to the dtype of the sum (`make_reduction` in ReduceOpsUtils.h)."""
    if input.is_floating_point() or input.is_complex():
        return 0
    kind = dtype or torch.int64
    return 0 if input.dtype == kind else input.numel() * kind.itemsize


def _real_transform(input: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> int:
    """For bfloat16, half the spectrum in its own complex type; two-sided, also in complex64 (cuda/SpectralOps.cpp)."""
    if input.dtype != torch.bfloat16:
        return 0
    half = input.numel() // input.shape[dims[-1]] * (input.shape[dims[-1]] // 2 + 1)
    pair = 2 * input.itemsize
    return request(half * pair) + (0 if onesided else request(half * torch.complex64.itemsize))


def _inverse_transform(input: torch.Tensor, *options: Any) -> int:
    """Copy of the input, which cuFFT overwrites (_fft_c2r_cufft in cuda/SpectralOps.cpp)."""
    return tensor_request(input)


COPIES: dict[Any, Callable[..., int]] = {
    aten.max_pool2d_with_indices: _pool,
    aten.max_pool2d_with_indices_backward: _pool_backward,
    aten.avg_pool2d: _pool,
    aten.avg_pool2d_backward: _pool_backward,
    aten._adaptive_avg_pool2d: _adaptive_pool,
    aten._adaptive_avg_pool2d_backward: _adaptive_pool_backward,
    aten.native_layer_norm: _layer_norm,
    aten.native_layer_norm_backward: _layer_norm_backward,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten._softmax_backward_data: _softmax_backward,
    aten._safe_softmax: _safe_softmax,
    aten.roll: _roll,
    aten._fft_r2c: _real_transform,
    aten._fft_c2r: _inverse_transform,
    aten.sum: _sum,
}
