"""Attention for which a device has no fused kernel, as PyTorch's own steps make it on CUDA: knows nothing of steps.

`_scaled_dot_product_attention_math` in aten/src/ATen/native/transformers/attention.cpp, which takes fake tensors for
subclasses and the CPU's dropout for any.
"""

from __future__ import annotations

import math

import torch

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
    dtype = query.dtype
    if dtype in HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(abs(scale) if scale else 1 / math.sqrt(query.shape[-1]))
    query = torch.mul(query, -factor if scale and scale < 0 else factor)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = numbers_of(mask, query.dtype)
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(times, -3) for one in (key, value))
    scores = torch.matmul(query, torch.mul(key, factor).transpose(-2, -1))
    if mask is not None:
        scores.add_(mask)
    weights = torch._safe_softmax(scores, -1)
    del scores
    if dropout_p:
        weights = torch.native_dropout(weights, dropout_p, True)[0]
    returned = weights.to(dtype)  # beside the result, and first
    out = torch.matmul(weights, value).to(dtype)
    del returned
    return out


def numbers_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores: `convert_boolean_attn_mask` in the same file."""
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=dtype)) if mask.dtype == torch.bool else mask
