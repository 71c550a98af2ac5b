"""Computes the bytes of the buffers that sums, means, norms and other reductions take on CUDA.

If the inputs of an output are split among thread blocks, each block writes its partial result to global memory. Source
of the split: setReduceConfig in aten/src/ATen/native/cuda/Reduce.cuh; of the order and coalescing of dimensions before
it: aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from profiler.core.gpu_specs import Chip
from profiler.predicting.trace.kernel_bytes import HALF, WARP, ceil_div, request

aten = torch.ops.aten
MAX_THREADS = 512
LEAST_VALUES, MOST_VALUES = 16, 256  # values that a thread reduces
INDEXED = 2**31 - 1  # bytes: the limit of 32-bit indexing
WELFORD = 16  # bytes of a running mean and variance with its counts (aten/src/ATen/native/SharedReduceOps.h)
SUMS = (aten.sum, aten.nansum)
MOMENTS = (aten.var, aten.std, aten.var_mean, aten.std_mean)
EXTREMES = (aten.amax, aten.amin)
REDUCTIONS = (*SUMS, *MOMENTS, *EXTREMES, aten.mean, aten.linalg_vector_norm, aten.norm)
NO_DIMENSIONS: tuple[Any, ...] = ([], (), None)


class Dim(NamedTuple):
    """One dimension of the input; strides in elements."""

    size: int
    stride: int
    output_stride: int  # 0 if the dimension is reduced


class _Shape(NamedTuple):
    """What the configuration of a reduction depends on."""

    dims: list[Dim]  # reduced ones first; within both kinds, the fastest first
    itemsize: int  # of an input
    accumulated: int  # bytes of the accumulator
    vector: int  # inputs that a thread reads at once
    offset: int  # of the input in its storage, in elements


def reduction_bytes(func: Any, args: Any, kwargs: Any, chip: Chip) -> int:
    """Return the bytes of the buffer and the semaphores of a reduction; 0 for other operators."""
    if func._overloadpacket not in REDUCTIONS:
        return 0
    input = args[0]
    return buffer_bytes(input, _dims(func, args, kwargs or {}), chip, func._overloadpacket)


def buffer_bytes(input: torch.Tensor, reduced: Any, chip: Chip, operator: Any = aten.sum) -> int:
    """Return the bytes that reducing these dimensions, or all if none are given, takes besides the result."""
    if input.numel() == 0 or input.ndim == 0:
        return 0
    places = range(input.ndim) if reduced in NO_DIMENSIONS else [place % input.ndim for place in reduced]
    shape = _Shape(
        dims=_joined(_ordered(_dimensions(input, set(places)))),
        itemsize=input.itemsize,
        accumulated=_accumulated(operator, input.dtype),
        vector=8 if operator in SUMS and input.dtype in HALF else 2 if operator in MOMENTS else 4,
        offset=int(input.storage_offset()),
    )
    indexable = _indexable(shape)
    return _global_bytes(indexable, chip) + (_kept_apart(shape) if indexable != shape else 0)


def _dims(func: Any, args: Any, kwargs: Any) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    if "dim" not in names:
        return None
    place = names.index("dim")
    dims = args[place] if len(args) > place else kwargs.get("dim")
    return [dims] if isinstance(dims, int) else dims


def _accumulated(operator: Any, dtype: torch.dtype) -> int:
    if operator in MOMENTS:
        return WELFORD if dtype != torch.float64 else 2 * WELFORD
    if operator in EXTREMES or dtype not in HALF:
        return dtype.itemsize
    return torch.float32.itemsize


def _dimensions(input: torch.Tensor, reduced: set[int]) -> list[Dim]:
    """Return the dimensions, the last one first, with output strides of a contiguous result."""
    dims, stride = [], 1
    for place in reversed(range(input.ndim)):
        size = input.shape[place]
        dims.append(Dim(size, input.stride(place), 0 if place in reduced else stride))
        stride *= 1 if place in reduced else size
    return dims


def _ordered(dims: list[Dim]) -> list[Dim]:
    """As TensorIteratorBase::reorder_dimensions: an insertion sort that leaves ambiguous pairs in place."""
    ordered = list(dims)
    for begin in range(1, len(ordered)):
        place = begin
        for earlier in reversed(range(begin)):
            order = _compared(ordered[earlier], ordered[place])
            if order > 0:
                ordered[earlier], ordered[place] = ordered[place], ordered[earlier]
                place = earlier
            elif order < 0:
                break
    return ordered


def _compared(left: Dim, right: Dim) -> int:
    """Return 1 if two dimensions are to be swapped, -1 if they are in order, 0 if that is ambiguous."""
    if (left.output_stride == 0) != (right.output_stride == 0):
        return 1 if right.output_stride == 0 else -1
    for first, second in ((left.output_stride, right.output_stride), (left.stride, right.stride)):
        if first == 0 or second == 0:
            continue
        if first != second:
            return -1 if first < second else 1
        if left.size > right.size:
            return 1
    return 0


def _joined(dims: list[Dim]) -> list[Dim]:
    """As TensorIteratorBase::coalesce_dimensions."""
    joined: list[Dim] = dims[:1]
    for dim in dims[1:]:
        last = joined[-1]
        follows = (last.size * last.stride, last.size * last.output_stride) == (dim.stride, dim.output_stride)
        if last.size == 1 or dim.size == 1 or follows:
            strides = dim[1:] if last.size == 1 else last[1:]
            joined[-1] = Dim(last.size * dim.size, *strides)
        else:
            joined.append(dim)
    return joined


def _indexable(shape: _Shape) -> _Shape:
    """Halve the widest dimension until the input can be indexed with 32 bits."""
    dims = list(shape.dims)
    while 1 + sum((dim.size - 1) * dim.stride * shape.itemsize for dim in dims) > INDEXED:
        widest = max(range(len(dims)), key=lambda place: (dims[place].size - 1) * dims[place].stride)
        dims[widest] = dims[widest]._replace(size=dims[widest].size // 2)
    return shape._replace(dims=dims)


def _kept_apart(shape: _Shape) -> int:
    """Return the bytes of accumulators kept between parts reduced in turn, if the result is in half precision."""
    num_outputs = prod(dim.size for dim in shape.dims if dim.output_stride)
    return request(num_outputs * shape.accumulated) if shape.accumulated > shape.itemsize else 0


class _Threads(NamedTuple):
    """How a thread block is laid out over inputs and outputs."""

    num_inputs: int
    num_outputs: int
    width: int
    height: int
    output_vector: int  # outputs that a thread writes at once
    along_inputs: bool  # whether the block's width is along the inputs


def _global_bytes(shape: _Shape, chip: Chip) -> int:
    """As setReduceConfig and ReduceConfig::global_memory_size, plus the semaphores."""
    threads = _threads(shape)
    step_input, step_output = (threads.width, 1) if threads.along_inputs else (1, threads.width)
    if ceil_div(threads.num_inputs, step_input) < min(threads.height * LEAST_VALUES, MOST_VALUES):
        return 0
    values = ceil_div(threads.num_inputs, step_input * threads.height)
    grid = ceil_div(threads.num_outputs // threads.output_vector, step_output)
    target = chip.multiprocessors * (chip.threads_per_multiprocessor // (threads.width * threads.height))
    if values < MOST_VALUES or grid > target:
        return 0
    num_blocks = max(min(ceil_div(target, grid), ceil_div(values, LEAST_VALUES)), ceil_div(values, MOST_VALUES))
    if num_blocks <= 1:
        return 0
    lanes = 1 if threads.along_inputs else threads.width * threads.output_vector
    buffer = shape.accumulated * threads.num_outputs * num_blocks * lanes
    return request(buffer) + request(4 * grid)


def _threads(shape: _Shape) -> _Threads:
    dims = shape.dims
    reduced = [dim for dim in dims if dim.output_stride == 0]
    kept = dims[len(reduced) :]
    num_inputs, num_outputs = prod(dim.size for dim in reduced), prod(dim.size for dim in kept)
    along_inputs = not kept or (bool(reduced) and dims[0].stride < kept[0].stride)
    fastest = dims[0] if along_inputs or not kept else kept[0]
    wide, high = (num_inputs, num_outputs) if along_inputs else (num_outputs, num_inputs)
    output_vector = 1
    if fastest.stride == 1 or not dims:
        if along_inputs and wide >= 128 and len(reduced) == 1:
            wide //= shape.vector
        elif not along_inputs:
            output_vector = _output_vector(shape, kept[0])
            wide //= output_vector
    width, height = _block(wide, high, MAX_THREADS // output_vector)
    return _Threads(num_inputs, num_outputs, width, height, output_vector, along_inputs)


def _block(wide: int, high: int, most: int) -> tuple[int, int]:
    """As ReduceConfig::set_block_dimension."""
    wide, high = (_power(extent) if extent < most else most for extent in (wide, high))
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def _power(number: int) -> int:
    """Return the largest power of two that is not above the number."""
    return 1 << (max(number, 1).bit_length() - 1)


def _output_vector(shape: _Shape, fastest: Dim) -> int:
    """As get_output_vec_size: a divisor of the offset, of the fastest dimension's size and of all other strides."""
    others = [dim.stride for dim in shape.dims if dim is not fastest]
    vector = 4
    for number in (shape.offset, fastest.size, *others):
        while number % vector:
            vector //= 2
    return vector
