"""On fake CPU tensors, the operators whose saved tensors are CUDA's: knows nothing of steps.

Fake tensors on CUDA itself work in the forward only: where there is no GPU, autograd's engine fails in the backward.
Kernels are swapped by patching: a function mode is off inside its own handler, so that a recompute would run others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.trace.autocast import cast, cuda_autocast
from profiler.trace.tracer import on_host

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
unfused_attention = F.scaled_dot_product_attention  # for what the fused kernels do not take


@contextmanager
def cuda_like() -> Iterator[None]:
    """Dropout with a boolean mask, the fused attention kernels, offloading to a host, CUDA's autocast."""

    def offload(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            straight = tensor.contiguous()  # what is not is first copied on the device (native/cuda/Copy.cu)
            with on_host():
                return straight.clone()

        saved_tensors_hooks.__init__(self, pack, torch.Tensor.clone)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(F, "dropout", dropout))
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", attention))
        stack.enter_context(mock.patch.object(save_on_cpu, "__init__", offload))
        stack.enter_context(cuda_autocast())
        yield


def foreach(optimizer: torch.optim.Optimizer) -> None:
    """What optimizers choose by themselves for CUDA's parameters: all in one kernel, with a list of temporaries."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """The fused kernel: its mask takes one byte an element."""
    if not training or p == 0:
        return input
    out: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(out) if inplace else out


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Flash attention for 16-bit tensors without a mask, the memory-efficient kernel else, as PyTorch prefers them.

    Shapes: query (batch, heads, time, channels), key and value (batch, heads, source, channels).
    Batch and heads may be missing.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = cast((query, key, value, attn_mask), torch.get_autocast_dtype("cpu"))
    if query.dim() < 4:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    if query.dim() != 4:
        return unfused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa and key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if query.dtype in HALF and attn_mask is None:
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    else:
        bias = _as_bias(attn_mask, query, key)
        needed = any(one.requires_grad for one in (query, key, value))
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needed, dropout_p, is_causal, scale=scale
        )[0]
    found: torch.Tensor = out
    return found


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes numbers, and every mask is seen as one of all heads."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    return mask.expand(*query.shape[:-1], key.shape[-2])
