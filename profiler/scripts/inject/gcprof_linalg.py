"""Decompositions of matrices on the GPU, for which there is no hollow cuSOLVER: computed on the CPU.

`nn.init.orthogonal_` needs one, for example. Where the values do not allow it (those of a hollow GPU are not computed),
the result is that of the identity; of large matrices there are no values. What cuSOLVER works in is not allocated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

NAMES = (
    "linalg_qr", "linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_eig", "linalg_eigvals",
    "_linalg_eigh", "_linalg_svd", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "cholesky_inverse",
)  # fmt: skip
LARGE = 1 << 20  # elements
NOTE = "decompositions of matrices ran on the CPU: what cuSOLVER works in is not in the figures"
_kept: list[torch.library.Library] = []


def begin(note: Callable[[str], None]) -> None:
    """Have PyTorch's decompositions of CUDA matrices run on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel is overridden
        library.impl("_linalg_check_errors", lambda *arguments, **keywords: None, "CUDA")  # of what is not computed
        for name in NAMES:
            packet: Any = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet else ():
                given = (getattr(packet, overload)._schema, partial(_decompose, note, packet.default))
                ours = given[1] if overload == "default" else partial(_decompose_into, *given)
                library.impl(name if overload == "default" else f"{name}.{overload}", ours, "CUDA")


def _decompose(
    note: Callable[[str], None], operator: Callable[..., Any], matrix: torch.Tensor, *rest: Any, **keywords: Any
) -> Any:
    note(NOTE)
    device = matrix.device
    if matrix.numel() > LARGE:
        shapes = operator(*tree_map_only(torch.Tensor, _shape, (matrix, *rest)), **keywords)
        return tree_map_only(torch.Tensor, partial(_empty, device), shapes)
    others = tree_map_only(torch.Tensor, torch.Tensor.cpu, rest)
    try:
        made = operator(matrix.cpu(), *others, **keywords)
        is_made = not any(_has_failed(part) for part in (made if isinstance(made, tuple) else ()))
    except RuntimeError:  # of which torch.linalg.LinAlgError is one
        is_made = False
    if not is_made:
        made = operator(
            torch.eye(*matrix.shape[-2:], dtype=matrix.dtype).expand(matrix.shape).clone(), *others, **keywords
        )
    return tree_map_only(torch.Tensor, lambda part: part.to(device), made)


def _decompose_into(schema: Any, decompose: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Decompose into the tensors that the caller gives, as `out=` or the like."""
    outs = [keywords.pop(argument.name) for argument in schema.arguments if argument.is_out]
    made = decompose(*arguments, **keywords)
    for out, part in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
        out.resize_(part.shape).copy_(part)
    return tuple(outs) if len(outs) > 1 else outs[0]


def _has_failed(part: torch.Tensor) -> bool:
    """Whether a result is the `info` of a decomposition, and says that it failed."""
    return part.dtype == torch.int32 and part.dim() == 0 and bool(part)


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _empty(device: torch.device, shape: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device=device)
    return made if shape.dtype.is_floating_point or shape.dtype.is_complex else made.zero_()
