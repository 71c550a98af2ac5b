"""The meters, which read a training step: bytes, seconds, FLOPs, gradients, leftover memory; each on a fresh model.

Here is what they share: how far two tensors are from each other, and the FLOPs of attention kernels. PyTorch 2.11 has
no formula for the CPU's attention, and its others refuse grouped heads. Torch alone: files of `profiler/scripts/inject`
load this one where gcprof may not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

CHUNK = 2**24  # values that are reduced at a time: a GPU that the step leaves full has room for 0.5 GiB of float64
HOST = torch.device("cpu")
ROUNDING = 2.0**-12  # relative, the square root of fp32's last bit: kernels that differ by more do different work
LEAST_SCALE = 2.0**-8  # of the model's largest gradient; fp32 rounds a 0 to up to 2**-19 of it, < 0.001 of this


def difference(
    reference: torch.Tensor | None, other: torch.Tensor | None, *, least_scale: float = 0.0, device: torch.device = HOST
) -> float:
    """Return the relative difference of two tensors, from 0 to 2, reduced on the device.

    That is the largest absolute difference over the largest absolute value of both, or over `least_scale` if that is
    larger. It is 2 if it is not finite, one tensor is missing, or the shapes differ.
    """
    if reference is None or other is None:
        return 0.0 if reference is other else 2.0
    if reference.shape != other.shape:
        return 2.0
    reference, other = dense(reference), dense(other)
    if torch.equal(bytes_of(reference), bytes_of(other)) or torch.equal(reference, other):  # 0 and -0
        return 0.0
    sizes, apart = [], []
    for part, other_part in zip(_chunks(reference, device), _chunks(other, device), strict=True):
        wide, other_wide = widest(part), widest(other_part)
        sizes += [wide.abs().max(), other_wide.abs().max()]
        apart.append((wide - other_wide).abs().max())
    relative = float(torch.stack(apart).max() / torch.stack(sizes).max().clamp(min=least_scale))
    return relative if math.isfinite(relative) else 2.0


def _chunks(tensor: torch.Tensor, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the values on the device, a part at a time."""
    return (part.to(device) for part in tensor.flatten().split(CHUNK))


def largest(tensor: torch.Tensor, *, device: torch.device = HOST) -> float:
    """Return the largest finite absolute value, found on the device; 0 if there is none."""
    sizes = [part.abs() for part in _chunks(dense(tensor), device) if part.numel()]
    return max((float(size.masked_fill(~size.isfinite(), 0).max()) for size in sizes), default=0.0)


def widest(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)  # (bytes,)


KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")


def _forward(query: Any, key: Any, value: Any, *arguments: Any, **keywords: Any) -> int:
    """Return the FLOPs of scores and of results; each head of keys and values serves a group of queries' heads."""
    batch, heads, queries, width = query.shape
    flops: int = 2 * batch * heads * queries * key.shape[-2] * (width + value.shape[-1])
    return flops


def _backward(gradient: Any, query: Any, key: Any, value: Any, *arguments: Any, **keywords: Any) -> int:
    """Return the FLOPs of the scores again, and of the gradients of scores, queries, keys and values."""
    batch, heads, queries, width = query.shape
    flops: int = 2 * batch * heads * queries * key.shape[-2] * (3 * width + 2 * value.shape[-1])
    return flops


_forward._get_raw = _backward._get_raw = True  # type: ignore[attr-defined]  # the counter passes tensors
FORMULAS: dict[Any, Callable[..., int]] = {
    packet: formula
    for ending, formula in (("", _forward), ("_backward", _backward))
    for kernel in KERNELS
    if (packet := getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}{ending}", None)) is not None
}
