"""Makes operators on fake CPU tensors save, and return, what CUDA's do.

Fake CUDA tensors work in the forward only: without a GPU, autograd's engine fails in the backward. Kernels are swapped
by patching, not by a function mode, which is off inside its own handler: a recompute there would run other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch._prims_common import suggest_memory_format
from torch.autograd.graph import save_on_cpu
from torch.utils import checkpoint

from profiler.core.own_thread import replaced
from profiler.predicting.trace import half_fft
from profiler.predicting.trace.autocast import cast, cuda_autocast
from profiler.predicting.trace.fake_tensors import FakeTensors
from profiler.predicting.trace.in_place import adding_in_place
from profiler.predicting.trace.kernel_bytes import AMPERE, HALF
from profiler.predicting.trace.temporaries import is_cudnn_norm
from profiler.training.optimizers.wrapped import wrapped
from profiler.training.strategies import offload

aten = torch.ops.aten
WEIGHT = 2  # its place among F.batch_norm's arguments after the input
unfused_dropout, out_of_place_linear, strided_batch_norm = F.dropout, F.linear, F.batch_norm
unfused_rms_norm = F.rms_norm
unfused_attention = F.scaled_dot_product_attention  # for calls that no fused kernel takes
_CAPABILITY: ContextVar[tuple[int, int]] = ContextVar("_CAPABILITY", default=AMPERE)
Change = Callable[[Any, Any], Any]  # the results and arguments of an operator -> its results on CUDA


@contextmanager
def cuda_like(capability: tuple[int, int] = AMPERE) -> Iterator[None]:
    """Patch in CUDA's operators: fused dropout, attention, norms and RNN cells, offloading to the host, autocast.

    Which fused kernels exist depends on the device's compute capability.
    """
    token = _CAPABILITY.set(capability)
    with ExitStack() as stack:
        stack.callback(_CAPABILITY.reset, token)
        stack.enter_context(replaced(F, dropout=dropout, scaled_dot_product_attention=attention))
        stack.enter_context(replaced(F, linear=linear, batch_norm=batch_norm, rms_norm=rms_norm))
        stack.enter_context(half_fft.as_on_cuda())
        for module in (torch, torch._VF):  # nn.GRUCell calls that of torch._VF
            stack.enter_context(replaced(module, gru_cell=gru_cell, lstm_cell=lstm_cell))
        stack.enter_context(replaced(offload, save_on_cpu=_pinned))
        stack.enter_context(mock.patch.object(FakeTensors, "changes", CHANGES))
        stack.enter_context(cuda_autocast())
        yield


def _pinned(*, pin_memory: bool) -> save_on_cpu:
    """Return save_on_cpu as the strategy offload uses it on CUDA: always pinned."""
    return save_on_cpu(pin_memory=True)


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


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias in place if the product does not include it (aten/src/ATen/native/Linear.cpp)."""
    with adding_in_place():
        return out_of_place_linear(input, weight, bias)


def batch_norm(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Make the input dense for cuDNN, which saves it (`_batch_norm_impl_index` in native/Normalization.cpp)."""
    weight = args[2] if len(args) > WEIGHT else kwargs.get("weight")
    if is_cudnn_norm(input, weight):
        input = input.contiguous(memory_format=suggest_memory_format(input))
    return strided_batch_norm(input, *args, **kwargs)


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
        return attention_in_steps(query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
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


def _in_float(out: Any, args: Any) -> Any:
    """Return the results of a norm, with its statistics in fp32 for 16-bit tensors: CUDA's accumulation type.

    Source: aten/src/ATen/native/cuda/Normalization.cu, cuda/layer_norm_kernel.cu.
    """
    values, *statistics = out
    if values.dtype not in HALF:
        return out
    return (values, *(statistic.new_empty(statistic.shape, dtype=torch.float32) for statistic in statistics))


def _without_buffer(out: Any, args: Any) -> Any:
    """Return the result with an empty buffer, which only the CPU's backward reads (native/cuda/Activation.cpp)."""
    values, buffer = out
    return values, buffer.new_empty((0,))


def _in_complex64(out: Any, args: Any) -> Any:
    """Return the transform of bfloat16, which has no complex type, as complex64 (native/cuda/SpectralOps.cpp)."""
    if args[0].dtype != torch.bfloat16:
        return out
    return out.new_empty_strided(out.shape, out.stride(), dtype=torch.complex64)


CHANGES: dict[Any, Change] = {
    aten._fft_r2c.default: _in_complex64,
    aten.native_layer_norm.default: _in_float,
    aten.native_batch_norm.default: _in_float,
    aten.log_sigmoid_forward.default: _without_buffer,
}


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
    """Compute attention for which the device has no fused kernel, in the steps that PyTorch takes on CUDA.

    The steps are those of `_scaled_dot_product_attention_math` in aten/src/ATen/native/transformers/attention.cpp,
    which itself would treat fake tensors as subclasses and use the CPU's dropout. Half precision is computed in float.

    Shapes: query (batch, heads, time, channels), key and value (batch, heads, source, channels).
    """
    dtype, given = query.dtype, (query, key, value)
    is_wide = dtype in HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    kept = [tensor.float() for tensor in given] if is_wide else list(given)  # all are live until the end
    factor = math.sqrt(abs(scale) if scale else 1 / math.sqrt(query.shape[-1]))
    scaled = torch.mul(kept[0], -factor if scale and scale < 0 else factor)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = numbers_of(mask, scaled.dtype)
    if enable_gqa:
        kept += [tensor.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for tensor in kept[1:]]
    weights = torch.matmul(scaled, torch.mul(kept[-2], factor).transpose(-2, -1))
    if mask is not None:
        weights = torch.add(weights, mask) if _is_chosen() else weights.add_(mask)
    weights = torch._safe_softmax(weights, -1)
    if dropout_p:
        weights = torch.native_dropout(weights, dropout_p, True)[0]
    returned = weights.to(dtype)  # returned besides the result, and cast before it
    out = torch.matmul(weights, kept[-1]).to(dtype)
    del returned
    return out


def _is_chosen() -> bool:
    """Whether selective checkpointing's dispatch mode is active: under it, PyTorch does not write in place."""
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(type(mode).__module__ == checkpoint.__name__ for mode in modes)


def numbers_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask as numbers to add to scores: `convert_boolean_attn_mask` in attention.cpp."""
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=dtype)) if mask.dtype == torch.bool else mask
