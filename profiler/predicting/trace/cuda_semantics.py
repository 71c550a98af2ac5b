"""Makes operators on fake CPU tensors save, and return, what CUDA's do.

Fake CUDA tensors work in the forward only: without a GPU, autograd's engine fails in the backward. Kernels are swapped
by patching, not by a function mode, which is off inside its own handler: a recompute there would run other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F

from profiler.core.own_thread import replaced
from profiler.predicting.trace.autocast import cast, cuda_autocast
from profiler.predicting.trace.in_place import linear
from profiler.training.optimizers import wrapped

aten = torch.ops.aten
AMPERE = (8, 0)  # compute capability
HALF = (torch.float16, torch.bfloat16)
unfused_dropout = F.dropout
unfused_rms_norm = F.rms_norm
unfused_attention = F.scaled_dot_product_attention  # for calls that no fused kernel takes
_CAPABILITY: ContextVar[tuple[int, int]] = ContextVar("_CAPABILITY", default=AMPERE)


@contextmanager
def cuda_like(capability: tuple[int, int] = AMPERE) -> Iterator[None]:
    """Patch in CUDA's operators: fused dropout, attention, norms and RNN cells, autocast.

    Which fused kernels exist depends on the device's compute capability.
    """
    token = _CAPABILITY.set(capability)
    with ExitStack() as stack:
        stack.callback(_CAPABILITY.reset, token)
        stack.enter_context(replaced(F, dropout=dropout, scaled_dot_product_attention=attention))
        stack.enter_context(replaced(F, linear=linear, rms_norm=rms_norm))
        for module in (torch, torch._VF):  # nn.GRUCell calls that of torch._VF
            stack.enter_context(replaced(module, gru_cell=gru_cell, lstm_cell=lstm_cell))
        stack.enter_context(cuda_autocast())
        yield


def foreach(optimizer: torch.optim.Optimizer) -> None:
    """Set `foreach`, the optimizers' default for CUDA parameters: one kernel for all, with a list of temporaries."""
    for group in (group for part in wrapped(optimizer) for group in part.param_groups):
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Run the fused kernel, whose mask takes one byte per element; in place there is none (native/Dropout.cpp)."""
    if not training or p == 0:
        return input
    if inplace:
        return unfused_dropout(input, p, training, True)
    out: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return out


_RMS_NORM_IS_CAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")  # not in 2.11


class _FusedRmsNorm(torch.autograd.Function):
    """Saves its input, its weight and one number per row: the kernels of a layer norm, without the mean.

    Source: rms_norm_symint in aten/src/ATen/native/layer_norm.cpp, cuda/layer_norm_kernel.cu.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, shape: list[int], weight: torch.Tensor | None) -> torch.Tensor:
        out, _, scale = aten.native_layer_norm(input, shape, weight, None, 1e-5)
        ctx.save_for_backward(input, scale, weight)
        ctx.shape = shape
        normalized: torch.Tensor = out
        return normalized

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, torch.Tensor | None]:
        input, scale, weight = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2], False]
        inputs, weights, _ = aten.native_layer_norm_backward(
            gradient, input, ctx.shape, scale, scale, weight, None, needed
        )
        return inputs, None, weights


def rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Run the fused kernel if the weight has the input's dtype."""
    if torch.is_autocast_enabled("cpu") and _RMS_NORM_IS_CAST:
        input, weight = cast((input, weight), torch.float32)
        with torch.autocast("cpu", enabled=False):
            return rms_norm(input, normalized_shape, weight, eps)
    if weight is not None and weight.dtype != input.dtype:
        return unfused_rms_norm(input, normalized_shape, weight, eps)
    out: torch.Tensor = _FusedRmsNorm.apply(input, list(normalized_shape), weight)
    return out


def gru_cell(input: torch.Tensor, hidden: torch.Tensor, *weights: Any) -> torch.Tensor:
    """Run the fused kernel, which saves five numbers per number of the new state (native/RNN.cpp, cuda/RNN.cu).

    Shapes: input (batch, features) and hidden (batch, states), or both without the batch.
    """
    if torch.is_autocast_enabled("cpu"):
        given = cast((input, hidden, *weights), torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):
            return gru_cell(*given)
    of_input, of_hidden, *biases = weights
    gates = input.matmul(of_input.t()), hidden.matmul(of_hidden.t())
    out: torch.Tensor = aten._thnn_fused_gru_cell(*gates, hidden, *biases)[0]
    return out


def lstm_cell(input: torch.Tensor, hidden: Any, *weights: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the fused kernel, which saves its gates (native/RNN.cpp, cuda/RNN.cu). Shapes are those of `gru_cell`."""
    if torch.is_autocast_enabled("cpu"):
        given = cast((input, hidden, *weights), torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):
            return lstm_cell(*given)
    of_input, of_hidden, *biases = weights
    state, memory = hidden
    gates = input.matmul(of_input.t()), state.matmul(of_hidden.t())
    new_state, new_memory, _ = aten._thnn_fused_lstm_cell(*gates, memory, *biases)
    return new_state, new_memory


def attention(  # noqa: PLR0917  as torch's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run flash attention for 16-bit tensors without a mask, else the memory-efficient kernel, as PyTorch prefers them.

    If the device has neither for a call (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), it is done in steps.
    Shapes: query (batch, heads, time, channels), key and value (batch, heads, source, channels).
    Batch and heads may be missing.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = cast((query, key, value, attn_mask), torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):
            return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if query.dim() < 4:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    if query.dim() != 4:
        return unfused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not _is_fused(query, key, value, attn_mask):
        bias = None if attn_mask is None else numbers_of(attn_mask, query.dtype)
        in_steps: torch.Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return in_steps
    if query.dtype in HALF and attn_mask is None and _CAPABILITY.get() >= AMPERE:
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    else:
        bias = _as_bias(attn_mask, query, key)
        needed = any(tensor.requires_grad for tensor in (query, key, value))
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needed, dropout_p, is_causal, scale=scale
        )[0]
    attended: torch.Tensor = out
    return attended


def _is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether the device has a fused kernel for this dtype, whose vector loads these head sizes and strides allow.

    The last dimension of a mask must have stride 1, so that a bias by positions, (time, source, heads) permuted, has
    none. Before 2.15 memory-efficient attention takes no groups of heads that share a key.
    """
    capability = _CAPABILITY.get()
    if query.dtype == torch.bfloat16 and capability < AMPERE:
        return False
    is_dense = query.shape[-1] == 1 or all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    if not is_dense or (mask is not None and mask.stride(-1) != 1):
        return False
    if query.shape[-3] != key.shape[-3] and query.dtype not in HALF and torch.__version__ < "2.15":
        return False
    least = 8 if query.dtype in HALF else 4 if capability >= AMPERE else 1
    return query.shape[-1] % least == 0 and value.shape[-1] % least == 0


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as numbers to add, expanded to all heads; None without a mask."""
    if mask is None:
        return None
    return numbers_of(mask, query.dtype).expand(*query.shape[:-1], key.shape[-2])


def numbers_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask as numbers to add to scores: `convert_boolean_attn_mask` in attention.cpp."""
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=dtype)) if mask.dtype == torch.bool else mask
