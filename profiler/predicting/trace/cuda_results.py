"""For fake CPU tensors, the results of operators whose CUDA kernels return other sizes: knows nothing of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
Change = Callable[[Any, Any], Any]  # the results and arguments of an operator -> its results on CUDA


def _in_float(out: Any, args: Any) -> Any:
    """The results of a norm, with its statistics in fp32 for 16-bit tensors: CUDA's accumulation type.

    aten/src/ATen/native/cuda/Normalization.cu, cuda/layer_norm_kernel.cu.
    """
    values, *statistics = out
    if values.dtype not in HALF:
        return out
    return (values, *(statistic.new_empty(statistic.shape, dtype=torch.float32) for statistic in statistics))


def _without_buffer(out: Any, args: Any) -> Any:
    """The result with an empty buffer: only the CPU's backward reads one (aten/src/ATen/native/cuda/Activation.cpp)."""
    values, buffer = out
    return values, buffer.new_empty((0,))


CHANGES: dict[Any, Change] = {
    aten.native_layer_norm.default: _in_float,
    aten.native_batch_norm.default: _in_float,
    aten.log_sigmoid_forward.default: _without_buffer,
}
