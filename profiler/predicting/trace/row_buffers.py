"""Computes the bytes that the backwards of embeddings and layer norms take on CUDA besides their results.

Many indices are sorted, and the rows of each are summed in parts (aten/src/ATen/native/cuda/Embedding.cu,
EmbeddingBackwardKernel.cu); with many narrow rows, gradients of norm weights are summed in parts
(aten/src/ATen/native/cuda/layer_norm_kernel.cu). `taking_buffers` combines all buffers that depend on the chip.
"""

from __future__ import annotations

from typing import Any

import torch

from profiler.core.allocator_history import GRANULE
from profiler.core.gpu_specs import Chip, Rates
from profiler.predicting.trace.allocator import round_up
from profiler.predicting.trace.attention_buffers import attention_bytes
from profiler.predicting.trace.kernel_bytes import FLOAT, WARP, ceil_div, request, tensor_request
from profiler.predicting.trace.reductions import buffer_bytes, reduction_bytes
from profiler.predicting.trace.temporaries import straightened
from profiler.predicting.trace.tracer import Hidden

aten = torch.ops.aten
FEW = 3072  # indices: up to this many, one kernel sums them without sorting
ROWS_PER_PART, SORTED_BITS = 10, 8
MOST_THREADS = 1024
LONG = torch.int64.itemsize
MANY_ROWS, ROWS_AT_ONCE, COLUMNS_AT_ONCE, MOST_BLOCKS = 64 * 1024, 32, 32, 32 * 1024


def row_bytes(func: Any, args: Any, kwargs: Any, chip: Chip) -> int:
    """Return the bytes that an embedding's or layer norm's backward takes; 0 for other operators."""
    if func is aten.embedding_dense_backward.default:
        return _embedding_bytes(chip, *args)
    if func is aten.native_layer_norm_backward.default:
        return _norm_bytes(args, chip)
    return 0


def _embedding_bytes(chip: Chip, gradient: torch.Tensor, indices: torch.Tensor, num_weights: int, *flags: Any) -> int:
    """Return the bytes of the sorted indices, their original positions, their segments, and parts with their sums.

    Sorting precedes the result's allocation, and takes a second copy of both lists if the indices have more bits than
    are sorted at once. The few KiB of its histograms are left out.
    """
    _, by_frequency = flags
    number, width = indices.numel(), gradient.shape[-1]
    copied = straightened(gradient)
    if number <= FEW and not by_frequency:
        return copied
    list_bytes = request(number * indices.itemsize)
    at_once = num_weights.bit_length() <= SORTED_BITS
    result = request(num_weights * width * gradient.itemsize)
    sorting = (3 if at_once else 5) * list_bytes - result
    kept = (3 if by_frequency else 2) * list_bytes
    unique = 2 * list_bytes + 4 * GRANULE
    return copied + max(sorting, kept + unique, kept + list_bytes + _parts_bytes(chip, gradient, indices, num_weights))


def _parts_bytes(chip: Chip, gradient: torch.Tensor, indices: torch.Tensor, num_weights: int) -> int:
    """Return the bytes of the offsets of segments and parts, and of the parts' sums.

    If few weights have many parts, these are added to the result directly, in fp32: in place of sums, only the weight
    of each part is kept.
    """
    number, width = indices.numel(), gradient.shape[-1]
    num_segments = min(number, num_weights)
    num_parts = number // ROWS_PER_PART + num_segments
    threads = round_up(width, WARP)
    num_blocks = ceil_div(num_segments * threads, min(threads, MOST_THREADS))
    is_added_at_once = num_blocks < 4 * chip.multiprocessors and num_parts > 4 * num_blocks
    sums = [num_parts * width * max(gradient.itemsize, FLOAT)]
    if is_added_at_once:
        in_half = [num_weights * width * FLOAT] if gradient.itemsize < FLOAT else []
        sums = [num_parts * indices.itemsize, *in_half]
    lists = (LONG, LONG, *[num_segments * indices.itemsize] * 2, num_parts * indices.itemsize, *sums)
    return sum(request(nbytes) for nbytes in lists)


def _norm_bytes(args: Any, chip: Chip) -> int:
    """Return the bytes of the partial sums of weight and bias, and of summing up one of them."""
    input, shape, *_, weight, bias, _ = args[1:]
    width = torch.Size(shape).numel()
    num_rows = input.numel() // max(width, 1)
    if weight is None or num_rows <= MANY_ROWS or width // COLUMNS_AT_ONCE >= chip.multiprocessors // 2:
        return 0
    num_parts = min(ceil_div(num_rows, ROWS_AT_ONCE), MOST_BLOCKS // ceil_div(width, COLUMNS_AT_ONCE))
    parts = weight.new_empty((num_parts, width))
    partial_sums = tensor_request(parts) * (1 if bias is None else 2)
    return partial_sums + request(width * weight.itemsize) + buffer_bytes(parts, [0], chip)


def taking_buffers(hidden: Hidden, rates: Rates | None) -> Hidden:
    """Return `hidden` plus the buffers of reductions, attention and rows on this GPU, if its chip is known."""
    if rates is None or rates.chip is None:
        return hidden
    chip = rates.chip

    def with_buffers(func: Any, args: Any, kwargs: Any) -> int:
        own = reduction_bytes(func, args, kwargs, chip) or attention_bytes(func, args, kwargs, rates)
        return hidden(func, args, kwargs) + (own or row_bytes(func, args, kwargs, chip))

    return with_buffers
