"""Attention for which a device has no fused kernel, as PyTorch's own steps make it on CUDA: knows nothing of steps.

`_scaled_dot_product_attention_math` in aten/src/ATen/native/transformers/attention.cpp, which takes fake tensors for
subclasses and the CPU's dropout for any.
"""

from __future__ import annotations

import math

import torch
from torch.utils import checkpoint

HALF = (torch.float16, torch.bfloat16)


def attention_in_steps(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What is in half precision is scaled, multiplied and added up in float.

    Shapes: query (batch, heads, time, channels), key and value (batch, heads, source, channels).
    """
    dtype, given = query.dtype, (query, key, value)
    is_wide = dtype in HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    kept = [one.float() for one in given] if is_wide else list(given)  # all of them until the end
    factor = math.sqrt(abs(scale) if scale else 1 / math.sqrt(query.shape[-1]))
    scaled = torch.mul(kept[0], -factor if scale and scale < 0 else factor)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = numbers_of(mask, scaled.dtype)
    if enable_gqa:
        kept += [one.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for one in kept[1:]]
    weights = torch.matmul(scaled, torch.mul(kept[-2], factor).transpose(-2, -1))
    if mask is not None:
        weights = torch.add(weights, mask) if _is_chosen() else weights.add_(mask)
    weights = torch._safe_softmax(weights, -1)
    if dropout_p:
        weights = torch.native_dropout(weights, dropout_p, True)[0]
    returned = weights.to(dtype)  # beside the result, and first
    out = torch.matmul(weights, kept[-1]).to(dtype)
    del returned
    return out


def _is_chosen() -> bool:
    """Whether selective checkpointing sees operators: beneath its mode, PyTorch does not write in place."""
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(type(mode).__module__ == checkpoint.__name__ for mode in modes)


def numbers_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores: `convert_boolean_attn_mask` in the same file."""
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=dtype)) if mask.dtype == torch.bool else mask
