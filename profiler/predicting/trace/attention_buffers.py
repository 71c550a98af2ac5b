"""Computes the bytes that fused attention kernels take on CUDA besides their results.

Sources: which kernel runs, and its workspace, aten/src/ATen/native/transformers/cuda/attention_backward.cu, with
mem_eff_attention/kernels/cutlassB.h and mem_eff_attention/kernel_backward.h in that folder; the flash kernels,
flash_attn/flash_api.cpp.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import torch

from profiler.core.gpu_specs import Rates
from profiler.predicting.trace.allocator import round_up
from profiler.predicting.trace.kernel_bytes import AMPERE, FLOAT, HALF, TURING, VOLTA, ceil_div, request, tensor_request

aten = torch.ops.aten
ENOUGH_SHARED = 128 * 2**10  # bytes per multiprocessor: 8.6, 8.9 and 12.0 have 100 KiB, 8.0 and others 164 KiB or more
PADDING = 4  # words of padding per tile of the queries' gradients
MOST_PARALLEL, LEAST_PARALLEL = 200, 256  # thread blocks: thresholds for splitting the keys
FLASH_ROWS, MOST_SPLITS = 64, 128
AT_ONCE = 128  # value channels: the most that a forward kernel accumulates in one pass (cutlassF.h)


class _Tile(NamedTuple):
    """The tile of a memory-efficient backward kernel: numbers of queries and keys, and its widest head."""

    queries: int
    keys: int
    widest: int


class _Heads(NamedTuple):
    """Sizes of an attention call: query (batch, heads, time, channels), key (batch, heads, source, channels)."""

    batch: int
    heads: int
    time: int
    channels: int
    source: int
    key_heads: int
    value_channels: int


def attention_bytes(func: Any, args: Any, kwargs: Any, rates: Rates) -> int:
    """Return the bytes that an attention kernel takes besides its results; 0 for other operators."""
    count = COUNTS.get(func)
    return count(args, kwargs or {}, rates) if count else 0


def _efficient_forward(args: Any, kwargs: Any, rates: Rates) -> int:
    """Return the bytes of an fp32 result, if a head is too wide to be accumulated in one pass."""
    query, value = args[0], args[2]
    is_added_up = query.dtype in HALF and value.shape[3] > AT_ONCE
    return request(query.numel() // query.shape[3] * value.shape[3] * FLOAT) if is_added_up else 0


def _efficient_backward(args: Any, kwargs: Any, rates: Rates) -> int:
    """Return the bytes of a copied gradient, of the sums over rows, and of the workspace."""
    gradient, query, key, value = args[:4]
    heads = _heads(query, key, value)
    is_half = query.dtype in HALF
    tile = _tile(max(heads.channels, heads.value_channels), rates, is_half=is_half, drops=bool(args[9]))
    copied = _copied(gradient) + _grouped_bytes(heads, key, value)
    rows = request(heads.batch * heads.heads * heads.time * FLOAT)
    workspace = request(_workspace(heads, tile, rates, is_half=is_half))
    if is_half and (_stays_in_registers(tile) or not VOLTA <= rates.compute_capability < TURING):
        return copied + rows + workspace
    product = request(gradient.numel() * FLOAT) * (3 if is_half else 1)  # both factors are cast
    straightened = rows if heads.heads > 1 and heads.time > 1 else 0
    return copied + max(product + rows + straightened, rows + workspace)


def _tile(widest: int, rates: Rates, *, is_half: bool, drops: bool) -> _Tile:
    """Return the tile of the first kernel in cutlassB.h that takes such heads and fits in shared memory."""
    is_ampere = rates.compute_capability >= AMPERE
    fits = not is_ampere or rates.chip is None or rates.chip.shared_memory_bytes >= ENOUGH_SHARED
    if widest <= 64:
        return _Tile(64, 64, 64 if widest > 32 else 32)
    limit = 128 if widest <= 128 else 2**16
    if is_half and is_ampere and not fits and widest <= 96 and not drops:
        return _Tile(128, 64, 96)
    if not (is_half or is_ampere) or not (fits or (is_half and limit > 128)):
        return _Tile(64, 64, limit)
    if is_half and is_ampere and limit == 128:
        return _Tile(128, 128, limit)
    return _Tile(128, 64, limit)


def _stays_in_registers(tile: _Tile) -> bool:
    """Whether a half-precision kernel keeps the gradients of keys and values in registers."""
    return tile.widest <= tile.queries


def _workspace(heads: _Heads, tile: _Tile, rates: Rates, *, is_half: bool) -> int:
    """As Params::workspace_size: tiles of the queries' gradients, and of keys' and values' for each split."""
    if rates.compute_capability < VOLTA and not is_half:
        return 0
    num_tiles = ceil_div(heads.time, tile.queries) * ceil_div(heads.channels, tile.keys)
    words = num_tiles * (tile.queries * tile.keys + PADDING)
    if is_half and not _stays_in_registers(tile):
        wide = round_up(heads.channels, tile.queries) + round_up(heads.value_channels, tile.queries)
        words += _num_splits(heads, tile) * tile.keys * wide
    return heads.batch * heads.heads * round_up(words, 8) * FLOAT


def _num_splits(heads: _Heads, tile: _Tile) -> int:
    parallel = heads.batch * heads.heads
    if parallel >= LEAST_PARALLEL and heads.source <= 2 * tile.keys:
        return 1
    return max(1, min(ceil_div(heads.source, tile.keys), MOST_PARALLEL // parallel))


def _flash_forward(args: Any, kwargs: Any, rates: Rates) -> int:
    """Return the bytes of the result of each split, if the keys are split."""
    query, key, value = args[:3]
    heads, drops = _heads(query, key, value), args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
    if drops or rates.chip is None:
        return 0
    keys = 256 if heads.channels <= 64 else 128 if heads.channels <= 128 else 64
    num_splits = _flash_splits(
        heads.batch * heads.heads * ceil_div(heads.time, FLASH_ROWS),
        rates.chip.multiprocessors * 2,
        ceil_div(heads.source, keys),
    )
    if num_splits <= 1:
        return 0
    rows = num_splits * heads.batch * heads.heads * heads.time * FLOAT
    return request(rows) + request(rows * _flash_width(heads.channels))


def _flash_splits(num_blocks: int, num_units: int, num_key_blocks: int) -> int:
    """As num_splits_heuristic: the fewest splits with at least 85 % of the best occupancy."""
    if num_blocks >= 0.8 * num_units:
        return 1
    most = min(MOST_SPLITS, num_units, num_key_blocks)
    tried = [
        count
        for count in range(1, most + 1)
        if count == 1 or ceil_div(num_key_blocks, count) != ceil_div(num_key_blocks, count - 1)
    ]
    waves = [num_blocks * count / num_units for count in tried]
    efficiencies = [wave / ceil(wave) for wave in waves]
    best = max(efficiencies, default=0.0)
    return next((count for count, efficiency in zip(tried, efficiencies, strict=True) if efficiency >= 0.85 * best), 1)


def _flash_width(channels: int) -> int:
    return round_up(round_up(channels, 8), 32 if channels <= 128 else 64)


def _flash_backward(args: Any, kwargs: Any, rates: Rates) -> int:
    """Return the bytes of copies of gradient and result, of sums over rows, and of queries' gradients in fp32."""
    gradient, query, key, value, out = args[:5]
    heads = _heads(query, key, value)
    rows = heads.batch * heads.heads * round_up(heads.time, 128) * FLOAT
    copied = _copied(gradient) + _copied(out)
    buffers = copied + request(rows) + request(rows * _flash_width(heads.channels))
    return buffers + _grouped_bytes(heads, key, value)


def _grouped_bytes(heads: _Heads, *of: torch.Tensor) -> int:
    """Return the bytes of the gradients per head, before they are summed, if several heads share a key and a value."""
    if heads.key_heads == heads.heads:
        return 0
    return sum(request(tensor.numel() // heads.key_heads * heads.heads * tensor.itemsize) for tensor in of)


def _copied(tensor: torch.Tensor) -> int:
    """Return the bytes of a copy in the order (batch, time, heads, channels); 0 if the tensor has it already."""
    return 0 if tensor.transpose(1, 2).is_contiguous() else tensor_request(tensor)


def _heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> _Heads:
    batch, heads, time, channels = query.shape
    return _Heads(batch, heads, time, channels, key.shape[2], key.shape[1], value.shape[3])


COUNTS = {
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention.default: _flash_forward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
