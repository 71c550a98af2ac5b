"""Computes the bytes that convolutions on CUDA take besides their results and cuDNN's workspaces.

cuDNN reads the input, the weight and the gradient in one memory format, and PyTorch copies tensors in another one
(aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp). It also copies for its own depthwise kernels
(cuda/DepthwiseConv2d.cu), which take no channels-last tensors.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from profiler.core.gpu_specs import Chip, Rates
from profiler.predicting.trace.kernel_bytes import AMPERE, tensor_bytes
from profiler.predicting.trace.reductions import buffer_bytes
from profiler.predicting.trace.temporaries import copied_bytes, straightened
from profiler.predicting.trace.tracer import Hidden

aten = torch.ops.aten
SPATIAL = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
PLANE = 4
LEAST_CHANNELS, LEAST_WIDTH = 32, 7  # below, cuDNN is not used for depthwise convolutions


class Machine(NamedTuple):
    """What the choice of kernels depends on; without a chip, reduction buffers are not predicted."""

    chip: Chip | None = None
    capability: tuple[int, int] = AMPERE
    workspace_bytes: int = 0  # cuBLAS's, allocated while a matrix product runs


def taking_copies(hidden: Hidden, machine: Machine) -> Hidden:
    """Return `hidden` plus the copies that CUDA's kernels make, and what convolutions take."""

    def with_copies(func: Any, args: Any, kwargs: Any) -> int:
        own = hidden(func, args, kwargs)
        return own or copied_bytes(func, args, kwargs) or convolution_bytes(func, args, kwargs, machine)

    return with_copies


def machine_of(rates: Rates | None, workspace_bytes: int) -> Machine:
    """Return the Machine of a GPU; `rates` are None if only the kind of device is known."""
    if rates is None:
        return Machine(workspace_bytes=workspace_bytes)
    return Machine(rates.chip, rates.compute_capability, workspace_bytes)


def convolution_bytes(func: Any, args: Any, kwargs: Any, machine: Machine) -> int:
    """Return the most bytes that a convolution, or its backward, takes at once besides its results."""
    if func is aten.convolution.default:
        return _forward(machine, *args, **(kwargs or {}))
    return _backward(machine, *args, **(kwargs or {})) if func is aten.convolution_backward.default else 0


def _forward(
    machine: Machine, input: torch.Tensor, weight: torch.Tensor, bias: Any, *options: Any, **named: Any
) -> int:
    if _is_product(machine, input, weight, *options):
        return _product_bytes(machine, input, weight, *options)
    memory_format = _format(input, weight)
    return straightened(input, memory_format) + straightened(weight, memory_format)


def _backward(
    machine: Machine,
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    *options: Any,
    **named: Any,
) -> int:
    """Return the most bytes that the backward takes at once.

    The weight is copied only for the gradient of the input, the input only for the weight's. The gradient of the bias
    comes last.
    """
    wants_input, wants_weight, wants_bias = options[-1]
    if _is_product(machine, input, weight, *options[:-1]):
        return _product_backward_bytes(machine, gradient, input, weight, *options)
    memory_format = _format(input, weight)
    of_gradient, of_input, of_weight = (straightened(tensor, memory_format) for tensor in (gradient, input, weight))
    input_bytes, weight_bytes = tensor_bytes(input), tensor_bytes(weight)
    results = wants_input * input_bytes + wants_weight * weight_bytes
    if memory_format == torch.contiguous_format and _is_own(input, weight, *options[:3], groups=options[-2]):
        for_weight = wants_weight * (of_gradient + of_input + weight_bytes)
        for_input = wants_input * (of_gradient + of_weight + results)
    else:
        held = of_gradient + wants_weight * of_input
        for_input = wants_input * (held + of_weight + input_bytes)
        for_weight = wants_weight * (held + results)
    of_sum = _sum_bytes(machine, gradient) if wants_bias else 0
    bias_bytes = wants_bias * weight.shape[0] * weight.itemsize
    return int(max(of_sum, max(for_input, for_weight) - results - bias_bytes, 0))


def _sum_bytes(machine: Machine, gradient: torch.Tensor) -> int:
    """Return the bytes of the buffer in which the gradient of the bias is summed."""
    return buffer_bytes(gradient, [0, *range(2, gradient.dim())], machine.chip) if machine.chip else 0


def _is_product(machine: Machine, input: torch.Tensor, weight: torch.Tensor, *options: Any) -> bool:
    """Whether the convolution is a matrix product of im2col columns, without cuDNN: bfloat16 before Ampere.

    See `use_cudnn` in Convolution.cpp. Only 2-D convolutions that are neither transposed nor dilated nor depthwise.
    """
    if input.dtype != torch.bfloat16 or machine.capability >= AMPERE or input.dim() != PLANE:
        return False
    stride, padding, dilation, is_transposed, _, groups = options
    is_plane = not is_transposed and max(dilation) == 1
    return is_plane and not _is_own(input, weight, stride, padding, dilation, groups=groups)


def _product_bytes(machine: Machine, input: torch.Tensor, weight: torch.Tensor, *options: Any) -> int:
    """Return the bytes of the product form; groups run in turn, their results held until joined (Convolution.cpp)."""
    stride, padding, *_, groups = options
    columns = _columns_bytes(machine, input, weight, stride, padding)
    if groups == 1:
        return straightened(input) + straightened(weight) + columns
    out = input.shape[0] * weight.shape[0] * prod(_places(input, weight, stride, padding)) * input.itemsize
    return straightened(input) + max(out, _group_bytes(input, groups) + columns)


def _product_backward_bytes(
    machine: Machine, gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *options: Any
) -> int:
    """Return the bytes of the product form's backward; sources are those of the forward.

    Copies are live throughout, and so are the columns, which both gradients use.
    """
    stride, padding, *_, groups, (wants_input, wants_weight, wants_bias) = options
    columns = _columns_bytes(machine, input, weight, stride, padding)
    copies = straightened(gradient) + straightened(input)
    results = wants_input * tensor_bytes(input) + wants_weight * tensor_bytes(weight)
    if groups > 1:
        parts = _group_bytes(input, groups) + straightened(gradient.narrow(1, 0, gradient.shape[1] // groups))
        return straightened(input) + int(max(results, parts + columns))
    absent = 0 if wants_weight else wants_bias * weight.shape[0] * weight.itemsize
    of_weight = straightened(weight) - wants_weight * tensor_bytes(weight) if wants_input else 0
    of_sum = _sum_bytes(machine, gradient) if wants_bias else 0
    return int(copies + max(columns + max(of_weight, 0) - absent, of_sum))


def _group_bytes(tensor: torch.Tensor, groups: int) -> int:
    """Return the bytes of a copy of one group's channels; 0 for a single image, where they are contiguous."""
    return tensor_bytes(tensor) // groups if tensor.shape[0] > 1 else 0


def _columns_bytes(machine: Machine, input: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any) -> int:
    """Return the bytes of one image's columns, unless they are the image itself, and of the product's workspace.

    Source: cuda/ConvolutionMM2d.cu.
    """
    if (*weight.shape[2:], *stride) == (1, 1, 1, 1) and not any(padding):
        return machine.workspace_bytes
    places = prod(_places(input, weight, stride, padding))
    return prod(weight.shape[1:]) * places * input.itemsize + machine.workspace_bytes


def _places(input: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any) -> list[int]:
    """Return the height and width of the result."""
    sides = zip(input.shape[2:], weight.shape[2:], stride, padding, strict=True)
    return [(side + 2 * pad - size) // step + 1 for side, size, step, pad in sides]


def _is_own(
    input: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, *, groups: int
) -> bool:
    """Whether PyTorch's own depthwise kernel runs, whose backward computes the gradient of the weight first.

    See `use_cudnn_depthwise` in Convolution.cpp.
    """
    channels = input.shape[1]
    if not 1 < groups == channels or input.dim() not in SPATIAL or weight.shape[0] % channels:
        return False
    is_plain = max(dilation) == 1 and input.dim() == PLANE and channels >= LEAST_CHANNELS
    if input.dtype != torch.float16 or not is_plain or (stride[0] != stride[1] and input.shape[2] != 1):
        return True
    return not _is_cudnn_workload(input, weight, stride[1])


def _is_cudnn_workload(input: torch.Tensor, weight: torch.Tensor, step: int) -> bool:
    """Whether cuDNN runs a depthwise convolution: `check_cudnn_depthwise_workload_with_filter`."""
    (num_images, channels, height, width), side = input.shape, weight.shape[3]
    if height == 1 and step == 1:
        return True
    if weight.shape[2] != side or side not in (1, 3, 5) or width < LEAST_WIDTH or step not in (1, 2):
        return False
    if step == 1:
        return True
    if side == 1:
        return width <= 28 if num_images == 1 else num_images <= 16 and channels >= 128 and width <= 7
    return num_images == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def _format(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the memory format, as cudnn_conv_suggest_memory_format in ConvUtils.h."""
    last = SPATIAL.get(input.dim())
    if input.dtype != torch.float64 and last and last in (suggest_memory_format(input), suggest_memory_format(weight)):
        return last
    return torch.contiguous_format
