"""Traces one training step under fake tensors: a workload in, a Trace out, with cuBLAS's workspaces."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace
from profiler.measuring.meters.operators import kind_of
from profiler.predicting.fake_tensors import DEVICE
from profiler.predicting.step_tracer import (
    BlockLife,
    BlockLives,
    Held,
    StepTracer,
    are_known,
    between_steps,
    plain_tensors,
)
from profiler.training.workload import Step, Workload, rounded

PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "addmm_", "_addmm_activation", "addmv", "baddbmm", "baddbmm_", "addbmm")
NAMES = tuple(f"aten.{product}" for product in PRODUCTS)
BIASED = ("aten.addmm", "aten._addmm_activation")  # run by cuBLASLt, whose own workspace is smaller
LT_WORKSPACE = 2**20  # bytes: cuBLASLt's default on every device
OWN = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), which an estimate does not follow "
    "to the host and back; `gcprof rehearse` runs them"
)
Hidden = Callable[[Any, Any, Any], int]  # the bytes that an operator with these arguments takes besides its outputs
_ON_HOST: ContextVar[bool] = ContextVar("_ON_HOST", default=False)


def follow(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    step: Step,
    *,
    device: str = "cpu",
    hidden: Hidden | None = None,
    workspace_bytes: int = 0,
    with_saves: bool = False,
    seed: Callable[[], None] = lambda: None,
) -> Trace:
    """Trace a training step after the steps that allocate what stays: gradients and optimizer state.

    `step` runs one training step and marks its phases. Tensors must be fake. `with_saves` also records what autograd
    saves, from which stages are cut. `seed` is called before each forward that must draw the same numbers, `hidden`
    returns what was measured of an operator. `workspace_bytes` are those of cuBLAS's workspace.
    """
    make = partial(FakeTracer, workload.module, kind=device, hidden=hidden)
    for _ in range(workload.settling):
        step(lambda phase: None)
    tracer = make(with_saves=with_saves)
    before = tracer.held(workload, optimizer)
    seed()
    with tracer.follow():
        loss = step(tracer.mark)
    after = tracer.held(workload, optimizer)
    seed()
    dropped = make(drops=True).follow_dropping(workload) if with_saves else None
    del loss
    return with_workspaces(tracer.trace(before, after, dropped), workspace_bytes)


class FakeTracer(StepTracer):
    """Dispatch mode that records every storage of what runs under it.

    `kind` is the device type whose allocator rounds bytes up.
    """

    saved_elsewhere = "`gcprof predict` runs them"

    def __init__(self, module: nn.Module, *, kind: str = "cpu", hidden: Hidden | None = None, **how: bool) -> None:
        """`how` is as in StepTracer."""
        super().__init__(module, **how)
        self.blocks, self.kind = BlockLives(), kind
        self._hidden = hidden

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        kind, kwargs = kind_of(func), kwargs or {}
        out = func(*args, **kwargs)
        if kind.is_question:
            return out
        number = len(self.operators) + 1
        phase, module, _ = self.place(number)
        hidden = self._hidden(func, args, kwargs) if self._hidden and not _ON_HOST.get() else 0
        self.operators.append(Operator(kind.name, module, phase, *kind.work(args, kwargs, out), hidden))
        self.uses_host = self.uses_host or _ON_HOST.get()
        if not kind.is_view and not _ON_HOST.get():
            self._find(out, number)
        return out

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Note what runs within, and the random state that every checkpoint on a CPU keeps, which no operator makes."""
        read = torch.get_rng_state

        def followed() -> torch.Tensor:
            state = read()
            self._find(state, len(self.operators) + 1)  # it is live from the next operator on
            return state

        random_state = replaced(torch, get_rng_state=followed) if self.kind == "cpu" else nullcontext()
        with self.hooked(), random_state, self:
            yield

    def held(self, workload: Workload, optimizer: torch.optim.Optimizer) -> Held:
        """Return the storages that live between two steps; those before the step are followed from now on."""
        held: Held = {}
        for tree, category, owner in between_steps(workload, optimizer):
            # numbers of an optimizer, such as Adam's count of steps, are on the host
            is_here = category != "optimizer" or self.kind == "cpu"
            own = [tensor for tensor in plain_tensors(tree) if is_here or tensor.ndim]
            if not self.marks:
                self._find(own, 0)
            for address in self.storages(own):
                held.setdefault(address, (category, owner))
        return held

    def storages(self, tree: Any) -> list[int]:
        return [tensor.untyped_storage()._cdata for tensor in plain_tensors(tree)]

    def _find(self, tree: Any, born: int) -> None:
        for tensor in plain_tensors(tree):
            if tensor.layout is not torch.strided:
                raise Unsupported("a sparse tensor cannot be traced: only its data tell its size")
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, rounded(storage.nbytes(), self.kind)
            if nbytes and key not in self.blocks.here:
                life = BlockLife(key, nbytes, born)
                life.watch = weakref.ref(storage, partial(self._gone, key))
                self.blocks.give(life)

    def _gone(self, key: int, storage: object) -> None:
        self.blocks.here.pop(key).died = len(self.operators)


@contextmanager
def user_hooks(*, on_cuda: bool) -> Iterator[None]:
    """Trace save_on_cpu as on CUDA, and raise Unsupported at other hooks there; on a CPU, hooks run as they are."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        is_moved = on_cuda and isinstance(hooks, save_on_cpu)
        if on_cuda and not is_moved and not are_known(hooks):
            raise Unsupported(OWN)
        return enter(saved_tensors_hooks(_to_host, torch.empty_like) if is_moved else hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Leave out the storage of the copy: it is on the host, not on the traced device."""
    token = _ON_HOST.set(True)
    try:
        return torch.empty_like(tensor)
    finally:
        _ON_HOST.reset(token)


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
