"""What matrix products take of the allocator besides their results, and what cuBLAS keeps.

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
PRODUCTS = {  # which of their arguments are the factors
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
BIASED = (aten.addmm, aten._addmm_activation)  # which cuBLASLt takes where it can add the bias itself
NAMES = tuple(f"aten.{product.__name__}" for product in PRODUCTS)
LT_WORKSPACE = 2**20  # bytes: cuBLASLt's on every device


def taking_workspaces(hidden: Hidden | None, nbytes: int) -> Hidden:
    """Returns `hidden` with what products take: copies of their factors, and cuBLAS's workspace of `nbytes`.

    What was measured of an operator has both in it already. Without `nbytes` workspaces are kept, and not counted here.
    """
    return partial(_hidden_bytes, hidden, nbytes)


def given_workspace(nbytes: int) -> int:
    """cuBLAS's workspace as the environment asks for it in KiB, in pairs `:SIZE:COUNT`; else `nbytes`."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in pairs) * 2**10 if pairs else nbytes


def keeps_workspaces() -> bool:
    """Whether PyTorch keeps cuBLAS's workspaces between products: before 2.15, and where the environment asks for it.

    aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return torch.__version__ < "2.15" or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def taken_workspace(trace: Trace, nbytes: int) -> int:
    """The bytes of cuBLAS's workspace, of `nbytes`, where a product of the step takes it; or of those that are kept."""
    kept = sum(storage.nbytes for storage in trace.allocations if storage.category == WORKSPACES)
    taking = (operator for operator in trace.operators if operator.name in NAMES and operator.hidden_bytes >= nbytes)
    return kept or (nbytes if any(taking) else 0)


class _KeptByLt(int):
    """Bytes that a product of cuBLASLt takes for good, where its thread has run none before."""


def telling_lt(hidden: Hidden) -> Hidden:
    """Returns `hidden` with a mark at each product of cuBLASLt, where that keeps a workspace of its own.

    It does so before 2.15, beside that of cuBLAS; `with_workspaces` reads the marks and takes them away. Seen with 2.9
    and 2.11.
    """
    is_unified = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1" or torch.__version__ >= "2.15"
    return hidden if is_unified else partial(_marked, hidden)


def _marked(hidden: Hidden, func: Any, args: Any, kwargs: Any) -> int:
    own = hidden(func, args, kwargs)
    return Requests(*parts_of(own), _KeptByLt(_lt_workspace())) if _runs_on_lt(func, args, kwargs) else own


def with_workspaces(trace: Trace, nbytes: int) -> Trace:
    """The trace with the workspaces that cuBLAS keeps: one for the forward's thread and one for autograd's."""
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
        return 0  # it is multiplied element by element
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
    """Whether cuBLASLt adds the bias: a row, or a whole matrix in half precision."""
    (_, inner), columns = left.shape, right.shape[1]
    if inner == 1 or columns == 1:
        return False
    if bias.shape in ((columns,), (1, columns)):
        return beta == 1 and bias.is_contiguous()
    is_whole = bias.shape == (left.shape[0], columns) and bias.dtype in HALF
    return is_whole and bias.stride(1) == 1 and bias.stride(0) >= columns


def _copied_bytes(factor: torch.Tensor) -> int:
    """Returns the bytes of a copy of a factor whose rows and columns both have gaps or overlap; else 0."""
    if factor.dim() < 2 or factor.is_contiguous():
        return 0
    (rows, columns), (down, across) = factor.shape[-2:], factor.stride()[-2:]
    is_read = (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))
    return 0 if is_read else tensor_bytes(factor)
