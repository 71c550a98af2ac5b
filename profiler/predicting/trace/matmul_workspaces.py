"""Adds cuBLAS's workspace to a traced step, of the size that PyTorch gives it on the device."""

from __future__ import annotations

import os

import torch
from msgspec.structs import replace

from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace

PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "addmm_", "_addmm_activation", "addmv", "baddbmm", "baddbmm_", "addbmm")
NAMES = tuple(f"aten.{product}" for product in PRODUCTS)
BIASED = ("aten.addmm", "aten._addmm_activation")  # run by cuBLASLt, whose own workspace is smaller
LT_WORKSPACE = 2**20  # bytes: cuBLASLt's default on every device


def keeps_workspaces() -> bool:
    """Whether PyTorch keeps cuBLAS's workspaces between products: before 2.15, and if the environment asks for it.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return torch.__version__ < "2.15" or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def with_workspaces(trace: Trace, nbytes: int) -> Trace:
    """Return the step with workspaces of `nbytes`: kept, by the forward's thread and autograd's, or of each product."""
    if not nbytes:
        return trace
    if not keeps_workspaces():
        return replace(trace, operators=tuple(_with_workspace(operator, nbytes) for operator in trace.operators))
    phases = {operator.phase for operator in trace.operators if operator.name in NAMES}
    num_threads = bool(phases & {"forward", "optimizer"}) + bool(phases & {"backward", "recompute"})
    kept = Allocation(nbytes, 0, len(trace.operators), "cuBLAS", "", "before", WORKSPACES)
    return replace(trace, allocations=(*trace.allocations, *[kept] * num_threads))


def _with_workspace(operator: Operator, nbytes: int) -> Operator:
    taken = 0 if operator.name not in NAMES else LT_WORKSPACE if operator.name in BIASED else nbytes
    return replace(operator, hidden_bytes=taken) if taken > operator.hidden_bytes else operator


def taken_workspace(trace: Trace, nbytes: int) -> int:
    """Return the bytes of all kept workspaces in the step or, without any, `nbytes` if a product takes a workspace."""
    kept = sum(storage.nbytes for storage in trace.allocations if storage.category == WORKSPACES)
    taking = (operator for operator in trace.operators if operator.name in NAMES and operator.hidden_bytes >= nbytes)
    return kept or (nbytes if any(taking) else 0)
