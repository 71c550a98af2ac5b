"""Computes the bytes that matrix products allocate besides their results, and those that cuBLAS keeps.

The rules are those of aten/src/ATen/native/cuda/Blas.cpp and aten/src/ATen/cuda/CublasHandlePool.cpp in 2.15.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import msgspec
import torch

from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace
from profiler.predicting.trace.kernel_bytes import HALF, Requests, parts_of, tensor_bytes
from profiler.predicting.trace.tracer import Hidden

aten = torch.ops.aten
PRODUCTS = {  # by operator: the places of the two factors
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.mv: (0, 1),
    aten.dot: (0, 1),
    aten.addmm: (1, 2),
    aten.addmm_: (1, 2),
    aten._addmm_activation: (1, 2),
    aten.addmv: (1, 2),
    aten.baddbmm: (1, 2),
    aten.baddbmm_: (1, 2),
    aten.addbmm: (1, 2),
}
BIASED = (aten.addmm, aten._addmm_activation)  # run by cuBLASLt if it can add the bias itself
NAMES = tuple(f"aten.{product.__name__}" for product in PRODUCTS)
LT_WORKSPACE = 2**20  # bytes: cuBLASLt's default on every device


def taking_workspaces(hidden: Hidden | None, nbytes: int) -> Hidden:
    """Return `hidden` plus what products take: copies of their factors, and cuBLAS's workspace of `nbytes`.

    Measured bytes of an operator include both already. If `nbytes` is 0, workspaces are kept, and not counted here.
    """
    return partial(_hidden_bytes, hidden, nbytes)


def given_workspace(nbytes: int) -> int:
    """Return the bytes of cuBLAS's workspace set in the environment, as pairs `:SIZE:COUNT` in KiB; else `nbytes`."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in pairs) * 2**10 if pairs else nbytes


def keeps_workspaces() -> bool:
    """Whether PyTorch keeps cuBLAS's workspaces between products: before 2.15, and if the environment asks for it.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return torch.__version__ < "2.15" or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def taken_workspace(trace: Trace, nbytes: int) -> int:
    """Return the bytes of all kept workspaces in the step or, without any, `nbytes` if a product takes a workspace."""
    kept = sum(storage.nbytes for storage in trace.allocations if storage.category == WORKSPACES)
    taking = (operator for operator in trace.operators if operator.name in NAMES and operator.hidden_bytes >= nbytes)
    return kept or (nbytes if any(taking) else 0)


class _KeptByLt(int):
    """The workspace bytes that a product of cuBLASLt allocates if it is the first in its thread, and keeps."""


def telling_lt(hidden: Hidden) -> Hidden:
    """Return `hidden` with a mark at each product that cuBLASLt runs, if cuBLASLt keeps its own workspace.

    It does so before 2.15, besides that of cuBLAS; `with_workspaces` reads the marks and removes them. Observed with
    2.9 and 2.11.
    """
    is_unified = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1" or torch.__version__ >= "2.15"
    return hidden if is_unified else partial(_marked, hidden)


def _marked(hidden: Hidden, func: Any, args: Any, kwargs: Any) -> int:
    own = hidden(func, args, kwargs)
    return Requests(*parts_of(own), _KeptByLt(_lt_workspace())) if _runs_on_lt(func, args, kwargs) else own


def with_workspaces(trace: Trace, nbytes: int) -> Trace:
    """Return the trace with the workspaces that cuBLAS keeps: one for the forward's thread and one for autograd's."""
    if not nbytes:
        return trace
    last = len(trace.operators)
    kept = list[Allocation]()
    for phases in ({"forward", "optimizer"}, {"backward", "recompute"}):
        products = [operator for operator in trace.operators if operator.phase in phases and operator.name in NAMES]
        lt_bytes = {part for product in products for part in product.requests if isinstance(part, _KeptByLt)}
        for size in (nbytes, *lt_bytes) if products else ():
            kept.append(Allocation(size, 0, last, "cuBLAS", "", "before", WORKSPACES))
    operators = tuple(_without_mark(operator) for operator in trace.operators)
    return msgspec.structs.replace(trace, allocations=(*trace.allocations, *kept), operators=operators)


def _without_mark(operator: Operator) -> Operator:
    requests = tuple(part for part in operator.requests if not isinstance(part, _KeptByLt))
    if len(requests) == len(operator.requests):
        return operator
    return msgspec.structs.replace(operator, requests=requests, hidden_bytes=sum(requests))


def _hidden_bytes(hidden: Hidden | None, nbytes: int, func: Any, args: Any, kwargs: Any) -> int:
    measured = hidden(func, args, kwargs) if hidden else 0
    if measured or func._overloadpacket not in PRODUCTS:
        return measured
    if func._overloadpacket is aten.bmm and args[0].shape[2] == 1:
        return 0  # it is computed by an elementwise product
    factors = [args[place] for place in PRODUCTS[func._overloadpacket]]
    if any(not factor.numel() for factor in factors):
        return 0
    copies = [_copied_bytes(factor) for factor in factors]
    return Requests(*copies, _workspace(func, args, kwargs, nbytes) if nbytes else 0)


def _workspace(func: Any, args: Any, kwargs: Any, nbytes: int) -> int:
    return _lt_workspace() if _runs_on_lt(func, args, kwargs) else nbytes


def _lt_workspace() -> int:
    return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", LT_WORKSPACE >> 10)) << 10


def _runs_on_lt(func: Any, args: Any, kwargs: Any) -> bool:
    return func._overloadpacket in BIASED and _is_added_by_lt(*args[:3], beta=(kwargs or {}).get("beta", 1))


def _is_added_by_lt(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float) -> bool:
    """Whether cuBLASLt adds the bias: one row, or a full matrix in half precision."""
    (_, inner), columns = left.shape, right.shape[1]
    if inner == 1 or columns == 1:
        return False
    if bias.shape in ((columns,), (1, columns)):
        return beta == 1 and bias.is_contiguous()
    is_whole = bias.shape == (left.shape[0], columns) and bias.dtype in HALF
    return is_whole and bias.stride(1) == 1 and bias.stride(0) >= columns


def _copied_bytes(factor: torch.Tensor) -> int:
    """Return the bytes of a copy of a factor that has gaps or overlaps in both rows and columns; else 0."""
    if factor.dim() < 2 or factor.is_contiguous():
        return 0
    (rows, columns), (down, across) = factor.shape[-2:], factor.stride()[-2:]
    is_read = (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))
    return 0 if is_read else tensor_bytes(factor)
