"""FLOPs of attention kernels: PyTorch 2.11 has no formula for the CPU's, and its others refuse grouped heads.

Torch alone: `profiler/scripts/inject/gcprof_values.py` loads this file where gcprof may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
