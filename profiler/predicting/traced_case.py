"""Traces one step under fake tensors, as its device would run it, with cuBLAS's workspaces."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import torch
from msgspec.structs import replace
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.core import gpu_specs
from profiler.core.case import SETTINGS, Calibration, Case
from profiler.core.errors import Unsupported, innermost_line
from profiler.core.gpu_specs import CUDA, Rates, parse
from profiler.core.own_thread import replaced
from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace
from profiler.measuring.meters.operators import call_signature, kind_of, operator_name
from profiler.planning.plan_code import Way
from profiler.predicting.cuda_rules import cuda_like, foreach
from profiler.predicting.fake_tensors import DEVICE, FakeTensors, fake_tensors, unseen
from profiler.predicting.step_tracer import Assumed, BlockLife, BlockLives, StepTracer, are_known, plain_tensors
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.block_segments import norms
from profiler.training.observed_forward import Observation, observe
from profiler.training.strategies import written
from profiler.training.workload import rounded

RANKS_ARE_REHEARSED = "ranks are rehearsed, not estimated: --device h100, on Linux on x86-64 with a CUDA build of torch"
T = TypeVar("T")

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


class _DependsOnData(Unsupported):
    """Raised if the step depends on its data."""


def trace_case(
    case: Case,
    *,
    calibration: Calibration | None = None,
    on_pass: Callable[[str], None] = lambda name: None,
    with_saves: bool = False,
    build: Build | None = None,
    in_calls: bool = False,
) -> tuple[Assembled, Trace, Assumed]:
    """Return the case's fake model with its strategy, the trace of one step, and what the trace assumes.

    A step whose sizes depend on its data is traced again with the case's routing. `with_saves` records what autograd
    saves, from which stages are cut; `build` and `in_calls` are those of `assemble`. Raises as `predict` does.
    """
    if case.ranks:
        raise Unsupported(RANKS_ARE_REHEARSED)
    kind = device_kind(case)

    def traced(routing: str | None) -> tuple[Assembled, Trace, Assumed]:
        with _fakes(case, routing) as fakes:
            built = assemble(case, build=build, in_calls=in_calls)
            if built.applied.changes_kernels:
                raise Unsupported(f"{case.label} makes its own kernels when it runs: they cannot be predicted")
            on_pass("memory")
            workload, (optimizer, step) = built.workload, built.trainer()
            if kind == "cuda":
                foreach(optimizer)
            make = partial(FakeTracer, workload.module, kind=kind, hidden=_measured(calibration))
            with unseen(), fakes.in_step():
                for _ in range(workload.settling):  # these allocate what stays: gradients and optimizer state
                    step(lambda phase: None)
                tracer = make(with_saves=with_saves)
                before = tracer.held(workload, optimizer)
                built.seed(2)
                with tracer.follow():
                    loss = step(tracer.mark)
                after = tracer.held(workload, optimizer)
                built.seed(2)
                dropped = make(drops=True).follow_dropping(workload) if with_saves else None
                del loss
                trace = tracer.trace(before, after, dropped)
        trace = with_workspaces(trace, workspace_bytes(case, calibration))
        return built, trace, Assumed(fakes.num_guesses, routing, fakes.is_compiled)

    return _as_data_allow(case, traced)


def _as_data_allow(case: Case, work: Callable[[str | None], T]) -> T:
    """Return what `work` returns without a routing or, if that depends on data, with the case's routing."""
    try:
        return work(None)
    except _DependsOnData:
        return work(case.routing or SETTINGS["routing"].choices[0])


def observe_case(case: Case, build: Build | None = None, *, in_calls: bool = False) -> Observation:
    """Observe in one forward how the blocks of the case's model feed each other. Raises as `predict` does."""

    def observed(routing: str | None) -> Observation:
        with _fakes(case, routing) as fakes:
            workload = assemble(case.baseline, build=build, in_calls=in_calls).workload
            with unseen(), fakes.in_step():
                return observe(workload)

    return _as_data_allow(case, observed)


def code_way(case: Case) -> Way:
    """Return what code is written for: the segments that the case's strategy checkpoints, and the heads put off.

    Raises Unsupported for a strategy that checkpoints no blocks itself, and as `predict` does.
    """

    def way(routing: str | None) -> Way:
        with _fakes(case, routing):
            built = assemble(case)
            workload, applied = built.workload, built.applied
            plan = written(workload, str(case.strategy))
            if not plan.segments and case.strategy.name not in ("none", "own"):
                raise Unsupported(f"there is no code for {case.strategy}: it checkpoints no block by itself")
            optimizer = None if workload.optimizer else type(built.trainer()[0]).__name__
            return Way(
                label=str(case.label), plan=plan, heads=applied.heads, optimizer=optimizer,
                has_batchnorm=bool(norms(workload)),
            )  # fmt: skip

    return _as_data_allow(case, way)


@contextmanager
def _fakes(case: Case, routing: str | None) -> Iterator[FakeTensors]:
    on_cuda = device_kind(case) == "cuda"
    with fake_tensors(routing) as fakes, user_hooks(on_cuda=on_cuda), cuda_like() if on_cuda else nullcontext():
        try:
            yield fakes
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            line = innermost_line(error)
            where = f", at {line}" if line else ""
            if isinstance(error, UnsupportedOperatorException):
                raise Unsupported(
                    f"'{error.func}' does not say what it returns without running{where}, so it cannot be traced; "
                    "`gcprof run` measures it, and torch.library.register_fake lets it be predicted"
                ) from error
            raise _DependsOnData(
                f"what the model does depends on its data ({error}){where}; `gcprof run` measures it, and "
                "`gcprof rehearse` takes zeros for what it reads"
            ) from error


def device_kind(case: Case) -> str:
    return "cpu" if case.twin.device == "cpu" else "cuda"


def known_rates(device: str, calibration: Calibration | None = None) -> Rates | None:
    """Return the rates of the device or, if only its kind is given, of the calibration's GPU; None if unknown."""
    name = parse(device).name
    if name not in ("cpu", "cuda") and not name.startswith(CUDA):
        return gpu_specs.find(name)
    return gpu_specs.of_device(calibration.device_name) if calibration and calibration.device_name else None


def workspace_bytes(case: Case, calibration: Calibration | None) -> int:
    """Return the bytes of cuBLAS's workspace; a device without known rates counts as a GPU before Hopper."""
    if device_kind(case) == "cpu":
        return 0
    rates = known_rates(case.device, calibration)
    return gpu_specs.workspace_bytes(rates) if rates else gpu_specs.SMALL_WORKSPACE


def _measured(calibration: Calibration | None) -> Hidden | None:
    """Return the function for a call's hidden bytes as the calibration measured them; 0 for other calls."""
    measured = calibration.hidden_bytes if calibration else {}
    names = {call.partition("(")[0] for call in measured}

    def hidden(operator: Any, arguments: Any, keywords: Any) -> int:
        is_known = operator_name(operator) in names
        return measured.get(call_signature(operator, arguments, keywords), 0) if is_known else 0

    return hidden if measured else None


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

    def own(self, tree: Any, category: str) -> list[torch.Tensor]:
        """Return the tensors on the device; what is there before the step is followed from now on."""
        # numbers of an optimizer, such as Adam's count of steps, are on the host
        is_here = category != "optimizer" or self.kind == "cpu"
        own = [tensor for tensor in plain_tensors(tree) if is_here or tensor.ndim]
        if not self.marks:
            self._find(own, 0)
        return own

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

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        token = _ON_HOST.set(True)  # the storage of the copy is not on the traced device
        try:
            return torch.empty_like(tensor)
        finally:
            _ON_HOST.reset(token)

    def entered(hooks: Any) -> Any:
        is_moved = on_cuda and isinstance(hooks, save_on_cpu)
        if on_cuda and not is_moved and not are_known(hooks):
            raise Unsupported(OWN)
        return enter(saved_tensors_hooks(to_host, torch.empty_like) if is_moved else hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def keeps_workspaces() -> bool:
    """Whether PyTorch keeps cuBLAS's workspaces between products: before 2.15, and if the environment asks for it.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return torch.__version__ < "2.15" or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def with_workspaces(trace: Trace, nbytes: int) -> Trace:
    """Return the step with workspaces of `nbytes`: kept, by the forward's thread and autograd's, or of each product."""
    if not nbytes:
        return trace
    if keeps_workspaces():
        phases = {operator.phase for operator in trace.operators if operator.name in NAMES}
        num_threads = bool(phases & {"forward", "optimizer"}) + bool(phases & {"backward", "recompute"})
        kept = Allocation(nbytes, 0, len(trace.operators), "cuBLAS", "", "before", WORKSPACES)
        return replace(trace, allocations=(*trace.allocations, *[kept] * num_threads))
    operators = []
    for operator in trace.operators:
        taken = 0 if operator.name not in NAMES else LT_WORKSPACE if operator.name in BIASED else nbytes
        is_more = taken > operator.hidden_bytes
        operators.append(replace(operator, hidden_bytes=taken) if is_more else operator)
    return replace(trace, operators=tuple(operators))


def taken_workspace(trace: Trace, nbytes: int) -> int:
    """Return the bytes of all kept workspaces in the step or, without any, `nbytes` if a product takes a workspace."""
    kept = sum(storage.nbytes for storage in trace.allocations if storage.category == WORKSPACES)
    taking = (operator for operator in trace.operators if operator.name in NAMES and operator.hidden_bytes >= nbytes)
    return kept or (nbytes if any(taking) else 0)
