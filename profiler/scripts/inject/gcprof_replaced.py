"""What the hollow cuDNN and cuSOLVER do not have, done otherwise; the first use of each leaves a note.

Recurrent networks, and the CTC loss that often follows them, run by PyTorch's own CUDA kernels, which take other
memory. Decompositions of matrices (`nn.init.orthogonal_` needs one) run on the CPU, without what cuSOLVER works in.
Where the values do not allow them (those of a hollow GPU are not computed), the result is that of the identity; of
large matrices there are no values.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import ExtensionFileLoader
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

RECURRENT = "recurrent networks ran by PyTorch's own kernels, not by cuDNN's, which take other memory"
CTC = "the CTC loss ran by PyTorch's own kernel: cuDNN's, which takes other memory, is for lengths on the CPU"
NAMES = (
    "linalg_qr", "linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_eig", "linalg_eigvals",
    "_linalg_eigh", "_linalg_svd", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "cholesky_inverse",
)  # fmt: skip
LARGE = 1 << 20  # elements
MISSING = re.compile(r"(?:undefined symbol: |symbol )((?:cu|nccl|nvrtc|nvml)\w+)")  # in the loader's error
_kept: list[torch.library.Library] = []


def begin(note: Callable[[str], None]) -> None:
    """Hide cuDNN from recurrent modules and the CTC loss, and have decompositions of CUDA matrices run on the CPU."""
    kinds: tuple[Any, ...] = (nn.RNN, nn.LSTM, nn.GRU)
    for kind in kinds:
        kind.forward = _without_cudnn(kind.forward, note, RECURRENT)
    base: Any = nn.RNNBase
    base.flatten_parameters = _without_cudnn(base.flatten_parameters, note, RECURRENT)
    nn.functional.ctc_loss = _without_cudnn(nn.functional.ctc_loss, note, CTC)
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel is overridden
        library.impl("_linalg_check_errors", lambda *arguments, **keywords: None, "CUDA")  # of what is not computed
        for name in NAMES:
            packet: Any = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet else ():
                decompose = partial(_decompose, note, packet.default, getattr(packet, overload)._schema)
                library.impl(name if overload == "default" else f"{name}.{overload}", decompose, "CUDA")


def _without_cudnn(plain: Callable[..., Any], note: Callable[[str], None], text: str) -> Callable[..., Any]:
    @wraps(plain)
    def call(*arguments: Any, **keywords: Any) -> Any:
        is_enabled = torch._C._get_cudnn_enabled()
        torch._C._set_cudnn_enabled(False)
        try:
            return plain(*arguments, **keywords)
        finally:
            torch._C._set_cudnn_enabled(is_enabled)
            if is_enabled and torch.cuda.is_initialized():
                note(text)

    return call


def _decompose(
    note: Callable[[str], None], operator: Callable[..., Any], schema: Any, matrix: Any, *rest: Any, **keywords: Any
) -> Any:
    """Return what the operator makes of the matrix; with `out=` or the like, into the tensors that are given."""
    note("decompositions of matrices ran on the CPU: what cuSOLVER works in is not in the figures")
    outs = [keywords.pop(argument.name) for argument in schema.arguments if argument.is_out]
    device = matrix.device

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    def empty(shape: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device=device)
        return made if shape.dtype.is_floating_point or shape.dtype.is_complex else made.zero_()

    if matrix.numel() > LARGE:
        shapes = operator(*tree_map_only(torch.Tensor, shape, (matrix, *rest)), **keywords)
        made = tree_map_only(torch.Tensor, empty, shapes)
    else:
        others = tree_map_only(torch.Tensor, torch.Tensor.cpu, rest)
        try:
            made = operator(matrix.cpu(), *others, **keywords)
            parts = made if isinstance(made, tuple) else ()
            has_failed = any(bool(one) for one in parts if one.dtype == torch.int32 and not one.dim())
        except RuntimeError:  # of which torch.linalg.LinAlgError is one
            has_failed = True
        if has_failed:
            identity = torch.eye(*matrix.shape[-2:], dtype=matrix.dtype).expand(matrix.shape).clone()
            made = operator(identity, *others, **keywords)
        made = tree_map_only(torch.Tensor, lambda part: part.to(device), made)
    if not outs:
        return made
    for out, part in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
        out.resize_(part.shape).copy_(part)
    return tuple(outs) if len(outs) > 1 else outs[0]


def tell_missing(note: Callable[[str], None]) -> None:
    """Note libraries that do not load for lack of a CUDA function: whoever loads them may catch that and go on."""

    def told(plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def load(*arguments: Any, **keywords: Any) -> Any:
            try:
                return plain(*arguments, **keywords)
            except (OSError, ImportError) as error:
                if missing := MISSING.search(str(error)):
                    library = os.path.basename(str(error).partition(":")[0])
                    note(
                        f"{library} does not load: it needs {missing[1]}, which the hollow GPU's libraries do not have"
                    )
                raise

        return load

    ctypes.CDLL.__init__ = told(ctypes.CDLL.__init__)  # type: ignore[method-assign]
    ExtensionFileLoader.create_module = told(ExtensionFileLoader.create_module)  # type: ignore[method-assign]
