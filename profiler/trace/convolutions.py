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
PLANE = 4
LEAST_CHANNELS, LEAST_WIDTH = 32, 7  # below, cuDNN is not asked for one filter a channel


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
    """The copy of the weight is for the gradient of the input only, that of the input for the weight's."""
    wants_input, wants_weight, wants_bias = options[-1]
    memory_format = _format(taken, weight)
    of_gradient, of_taken, of_weight = (straightened(one, memory_format) for one in (gradient, taken, weight))
    input_bytes, weight_bytes = taken.numel() * taken.itemsize, weight.numel() * weight.itemsize
    results = wants_input * input_bytes + wants_weight * weight_bytes
    if memory_format == torch.contiguous_format and _is_own(taken, weight, *options[:3], groups=options[-2]):
        for_weight = wants_weight * (of_gradient + of_taken + weight_bytes)
        for_input = wants_input * (of_gradient + of_weight + results)
    else:
        held = of_gradient + wants_weight * of_taken
        for_input = wants_input * (held + of_weight + input_bytes)
        for_weight = wants_weight * (held + results)
    bias_bytes = wants_bias * weight.shape[0] * weight.itemsize  # a result that comes last
    return max(for_input - results - bias_bytes, for_weight - results - bias_bytes, 0)


def _is_own(
    taken: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, *, groups: int
) -> bool:
    """Whether PyTorch's kernel for one filter a channel does it, which begins with the gradient of the weight.

    `use_cudnn_depthwise` and `check_cudnn_depthwise_workload_with_filter` in Convolution.cpp.
    """
    num_images, channels = taken.shape[:2]
    if not 1 < groups == channels or taken.dim() not in SPATIAL or weight.shape[0] % channels:
        return False
    is_plain = max(dilation) == 1 and taken.dim() == PLANE and channels >= LEAST_CHANNELS
    if taken.dtype != torch.float16 or not is_plain or (stride[0] != stride[1] and taken.shape[2] != 1):
        return True
    step, width, side = stride[1], taken.shape[3], weight.shape[3]
    if taken.shape[2] == 1 and step == 1:
        return False
    if weight.shape[2] != side or side not in (1, 3, 5) or width < LEAST_WIDTH or step not in (1, 2):
        return True
    if step == 1:
        return False
    if side == 1:
        return not (width <= 28 if num_images == 1 else num_images <= 16 and channels >= 128 and width <= 7)
    return not (num_images == 1 or channels >= 512 or (channels >= 256 and width >= 28))


def _format(taken: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """As cudnn_conv_suggest_memory_format in ConvUtils.h chooses."""
    last = SPATIAL.get(taken.dim())
    if taken.dtype != torch.float64 and last and last in (suggest_memory_format(taken), suggest_memory_format(weight)):
        return last
    return torch.contiguous_format
