"""Makes fake CPU tensors take CUDA's memory where the two differ most: autocast, dropout, attention, optimizers.

Autocast's lists are those of aten/src/ATen/autocast_mode.h. Operators that both devices run in half precision keep
PyTorch's rule; rules that only the CPU has are disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import library
from torch.utils._pytree import tree_leaves, tree_map

from profiler.core.own_thread import replaced
from profiler.predicting.step_tracer import linear
from profiler.training.optimizers import wrapped

aten = torch.ops.aten
plain_dropout, plain_attention = F.dropout, F.scaled_dot_product_attention
KEY = "AutocastCPU"
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
IN_FLOAT = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm"),
    *("native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim"),
    *("cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d"),
    *("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
TO_FLOAT = (  # by their argument `dtype`
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
)
FUSED = {"softmax.int": torch.ops.aten._softmax, "log_softmax.int": torch.ops.aten._log_softmax}  # for float16 inputs
IN_HALF = (  # in half precision on CUDA, without such a rule on the CPU
    *("_convolution", "convolution", "addmv", "addr", "einsum", "mv", "chain_matmul", "linalg_multi_dot"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
PROMOTED = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
)
REFUSED = "binary_cross_entropy"

Kernel = Callable[..., Any]


@contextmanager
def cuda_like() -> Iterator[None]:
    """Patch in CUDA's fused dropout and attention, its linear layers and its autocast.

    Its fused norms and RNN cells, and where it has no kernel for an attention, are left to the error of an estimate.
    """
    with replaced(F, dropout=dropout, scaled_dot_product_attention=attention, linear=linear), cuda_autocast():
        yield


def foreach(optimizer: torch.optim.Optimizer) -> None:
    """Set `foreach`, the optimizers' default for CUDA parameters: one kernel for all, with a list of temporaries."""
    for group in (group for part in wrapped(optimizer) for group in part.param_groups):
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Run the fused kernel, whose mask takes one byte per element; in place there is none (native/Dropout.cpp)."""
    if not training or p == 0 or inplace:
        return plain_dropout(input, p, training, inplace)
    out: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return out


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
    """Run flash attention for 16-bit tensors without a mask, else the memory-efficient kernel: neither saves scores.

    Shapes: query (batch, heads, time, channels), key and value (batch, heads, source, channels).
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = cast((query, key, value, attn_mask), torch.get_autocast_dtype("cpu"))
    with torch.autocast("cpu", enabled=False):
        if query.dim() != 4:
            return plain_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if query.dtype in HALF and attn_mask is None:
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        else:
            if attn_mask is not None and attn_mask.dtype == torch.bool:  # `convert_boolean_attn_mask` in attention.cpp
                attn_mask = torch.where(attn_mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=query.dtype))
            if attn_mask is not None:
                attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
            needed = any(tensor.requires_grad for tensor in (query, key, value))
            out = aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, needed, dropout_p, is_causal, scale=scale
            )[0]
    attended: torch.Tensor = out
    return attended


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Give autocast on the CPU the rules of CUDA. Autocast that a model enables for CUDA applies to the CPU."""
    start, is_enabled, get_dtype = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def dtype_of(device_type: str) -> torch.dtype:
        return get_dtype("cpu" if device_type == "cuda" and is_enabled("cpu") else device_type)

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or dtype_of("cuda")
        start(self, device_type, dtype, *args, **kwargs)

    def on(device_type: str = "cuda") -> bool:
        return is_enabled("cpu" if device_type == "cuda" else device_type)

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.autocast, __init__=init))
        stack.enter_context(replaced(torch, is_autocast_enabled=on, get_autocast_dtype=dtype_of))
        rules = stack.enter_context(library._scoped_library("aten", "IMPL"))
        for name, kernel in _kernels().items():
            rules.impl(name, kernel, KEY, allow_override=True)
        yield


def ruled(key: str) -> set[str]:
    """Return the operators, with their overloads, that have a kernel under this dispatch key."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.removeprefix("aten::") for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}


def cast(given: Any, dtype: torch.dtype) -> Any:
    """Cast tensors of the types in FLOATS, as autocast casts arguments; everything else stays as it is."""
    return tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.dtype in FLOATS else leaf, given
    )


@cache
def _kernels() -> dict[str, Any]:
    kernels: dict[str, Any] = dict.fromkeys(ruled(KEY) - ruled("AutocastCUDA"), library.fallthrough_kernel)
    kernels |= {name: _in(_operator(name), lambda given: torch.float32) for name in IN_FLOAT}
    kernels |= {name: _to_float(_operator(name), FUSED.get(name)) for name in TO_FLOAT}
    kernels |= {name: _in(_operator(name), lambda given: torch.get_autocast_dtype("cpu")) for name in IN_HALF}
    kernels |= {name: _in(_operator(name), _widest) for name in PROMOTED}
    return kernels | {REFUSED: _refuse}


def _in(operator: Any, choose: Callable[[Any], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = choose((args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return operator(*cast(args, dtype), **cast(kwargs, dtype))

    return kernel


def _widest(given: Any) -> torch.dtype:
    types = {leaf.dtype for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}
    return torch.float32 if torch.float32 in types else torch.get_autocast_dtype("cpu")


def _to_float(operator: Any, fused: Any) -> Kernel:
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = args[place - 1] if len(args) >= place else kwargs.get("dtype")
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            if first.dtype not in FLOATS or chosen is not None:
                return operator(first, *args, **kwargs)
            if fused and first.dtype == torch.float16:
                return fused(first, args[0], True)
            return operator(first, *args[: place - 1], **{**kwargs, "dtype": torch.float32})

    return kernel


def _refuse(*args: Any, **kwargs: Any) -> Any:
    """Raise as CUDA does for banned operators (`AT_ERROR`)."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "use binary_cross_entropy_with_logits"
    )


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")
