"""What convolutions on CUDA take besides their results and cuDNN's workspaces: bytes. Knows nothing of steps.

cuDNN reads the input, the weight and the gradient in one memory format, and PyTorch copies what lies otherwise
(aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp); so do the kernels of its own for one filter a channel
(cuda/DepthwiseConv2d.cu), which only take tensors that are not channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from profiler.trace.copies import copied_bytes, straightened
from profiler.trace.tracer import Hidden

aten = torch.ops.aten
SPATIAL = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
LINE = 3  # dimensions of a convolution over one axis


def taking_copies(hidden: Hidden) -> Hidden:
    """`hidden` with the copies that CUDA's kernels make, those of convolutions among them."""

    def taken(func: Any, args: Any, kwargs: Any) -> int:
        known = hidden(func, args, kwargs)
        return known or copied_bytes(func, args, kwargs) or convolution_bytes(func, args, kwargs)

    return taken


def convolution_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """What a convolution, or its backward, copies: the most at once beyond its results."""
    if func is aten.convolution.default:
        return _forward(*args, **(kwargs or {}))
    return _backward(*args, **(kwargs or {})) if func is aten.convolution_backward.default else 0


def _forward(taken: torch.Tensor, weight: torch.Tensor, *options: Any, **named: Any) -> int:
    memory_format = _format(taken, weight)
    return straightened(taken, memory_format) + straightened(weight, memory_format)


def _backward(
    gradient: torch.Tensor, taken: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, *options: Any, **named: Any
) -> int:
    """The copy of the weight is for the gradient of the input only; the others are there for that of the weight too."""
    wants_input, wants_weight, wants_bias = options[-1]
    memory_format = _format(taken, weight)
    copies = straightened(gradient, memory_format) + (straightened(taken, memory_format) if wants_weight else 0)
    weight_bytes, bias_bytes = weight.numel() * weight.itemsize, weight.shape[0] * weight.itemsize
    absent = wants_bias * bias_bytes  # of the results, while the copies are there
    for_input = straightened(weight, memory_format) - wants_weight * weight_bytes if wants_input else -absent
    return max(copies + max(for_input, 0) - absent, 0)


def _format(taken: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """As cudnn_conv_suggest_memory_format in ConvUtils.h chooses."""
    last = SPATIAL.get(taken.dim())
    is_last = last is not None and taken.dtype != torch.float64
    if is_last and last in (suggest_memory_format(taken), suggest_memory_format(weight)):
        return last
    return torch.contiguous_format
