"""Under autocast, fake CPU tensors in the precisions that CUDA chooses: knows nothing of steps.

The lists are those of aten/src/ATen/autocast_mode.h. What both devices run in half precision is left to PyTorch, and so
is what only the CPU has a rule for and CUDA runs in its inputs' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

KEY = "AutocastCPU"
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
TO_FLOAT = (  # as an option of theirs
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
)
FUSED = {"softmax.int": torch.ops.aten._softmax, "log_softmax.int": torch.ops.aten._log_softmax}  # from float16
AS_THEY_ARE = ("cross_entropy_loss", "grid_sampler")
REFUSED = "binary_cross_entropy"

Kernel = Callable[..., Any]


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """CUDA's rules for what autocast runs on the CPU, also where a model asks for autocast on CUDA."""
    start = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        start(self, device_type, dtype, *args, **kwargs)

    with (
        mock.patch.object(torch.autocast, "__init__", init),
        torch.library._scoped_library("aten", "IMPL") as library,
    ):
        for name in IN_FLOAT:
            library.impl(name, _in_float(_operator(name)), KEY, allow_override=True)
        for name in TO_FLOAT:
            library.impl(name, _to_float(_operator(name), FUSED.get(name)), KEY, allow_override=True)
        for name in AS_THEY_ARE:
            library.impl(name, torch.library.fallthrough_kernel, KEY, allow_override=True)
        library.impl(REFUSED, _refuse, KEY, allow_override=True)
        yield


def _in_float(operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operator(*tree_map(_float, args), **tree_map(_float, kwargs))

    return kernel


def _to_float(operator: Any, fused: Any) -> Kernel:
    place = [one.name for one in operator._schema.arguments].index("dtype")

    def kernel(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = args[place - 1] if len(args) >= place else kwargs.get("dtype")
        with _without_autocast():
            if first.dtype not in FLOATS or chosen is not None:
                return operator(first, *args, **kwargs)
            if fused and first.dtype == torch.float16:
                return fused(first, args[0], True)
            return operator(first, *args[: place - 1], **{**kwargs, "dtype": torch.float32})

    return kernel


def _refuse(*args: Any, **kwargs: Any) -> Any:
    """As CUDA does (`AT_ERROR` of the banned ones)."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "use binary_cross_entropy_with_logits"
    )


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _float(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in FLOATS
    return value.to(torch.float32) if is_half else value
