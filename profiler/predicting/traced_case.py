"""Traces one step of a case under fake tensors, as its device would run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from profiler.core import gpu_kinds, gpu_specs
from profiler.core.case import FAKE, SETTINGS, Calibration, Case
from profiler.core.errors import Unsupported
from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import Trace
from profiler.core.user_code import innermost_line
from profiler.measuring.meters.operators import call_signature, operator_name
from profiler.predicting.trace import convolutions, matmul_workspaces
from profiler.predicting.trace.cuda_semantics import cuda_like, foreach
from profiler.predicting.trace.fake_tensors import FakeTensors, fake_tensors, unseen
from profiler.predicting.trace.host_state import HostMarking, host_state
from profiler.predicting.trace.kernel_bytes import Measured
from profiler.predicting.trace.mkldnn_layers import kept_by_layers
from profiler.predicting.trace.row_buffers import taking_buffers
from profiler.predicting.trace.step import Builder, follow
from profiler.predicting.trace.temporaries import temporary_bytes
from profiler.predicting.trace.tracer import Hidden
from profiler.predicting.trace.unfused import unfused
from profiler.predicting.trace.user_hooks import user_hooks
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.checkpointing.observed_forward import Observation, Seen, observe, remembering
from profiler.training.workload import Step

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
RANKS_ARE_REHEARSED = "ranks are rehearsed, not estimated: --device h100, on Linux on x86-64 with a CUDA build of torch"
T = TypeVar("T")


class Assumed(NamedTuple):
    """What a trace assumes because only real data would decide it."""

    num_guesses: int = 0  # values that were guessed: `all()` as true, other tests as false, floats as 0
    routing: str | None = None  # the assumed routing of tokens, if sizes in the step depend on it
    is_unfused: bool = False  # whether compiled code ran operator by operator, without the kernels that fuse them


class _DependsOnData(Unsupported):
    """Raised if the step depends on its data."""


def trace_case(
    case: Case,
    *,
    calibration: Calibration | None = None,
    on_pass: Callable[[str], None] = lambda name: None,
    with_saves: bool = False,
    with_calls: bool = False,
    with_growth: bool = False,
    build: Build | None = None,
    in_calls: bool = False,
) -> tuple[Assembled, Trace, Assumed]:
    """Return the case's fake model with its strategy, the trace of one step, and what the trace assumes.

    A step whose sizes depend on its data is traced again with the case's routing. `with_saves`, `with_calls` and
    `with_growth` are those of `follow`, `build` and `in_calls` those of `assemble`. Raises as `predict` does.
    """
    if case.ranks:
        raise Unsupported(RANKS_ARE_REHEARSED)
    kind, is_kept = kind_of(case), matmul_workspaces.keeps_workspaces()
    workspace = workspace_bytes(case, calibration)
    hidden = _hidden(case, calibration, 0 if is_kept else workspace)

    def traced(routing: str | None) -> tuple[Assembled, Trace, Assumed]:
        with unfused() as compiled, _fakes(case, routing, calibration) as fakes:
            make = partial(assemble, case, build=build, in_calls=in_calls)
            built, builder = _followed(make, kind, hidden) if kind == "cuda" else (make(), None)
            if built.applied.changes_kernels:
                raise Unsupported(f"{case.strategy} makes its own kernels when it runs: they cannot be predicted")
            on_pass("memory")
            optimizer, step = _trainer(built, kind)
            on_host = host_state(optimizer) if kind == "cuda" else nullcontext()
            with on_host, unseen(), fakes.in_step():
                trace = follow(
                    built.workload,
                    optimizer,
                    step,
                    device=kind,
                    hidden=matmul_workspaces.telling_lt(hidden) if is_kept and workspace else hidden,
                    kept_bytes=workspace if is_kept else 0,
                    with_saves=with_saves,
                    with_calls=with_calls,
                    with_growth=with_growth,
                    batch_size=case.batch_size,
                    builder=builder,
                )
        return built, trace, Assumed(fakes.num_guesses, routing, compiled.num_graphs > 0)

    return _as_data_allow(case, traced)


def _followed(make: Callable[[], Assembled], kind: str, hidden: Hidden) -> tuple[Assembled, Builder]:
    """Return the assembled case and the trace of its building, without forwards that only observe the model.

    In a trial, the first pass has run those already. So the case is assembled until nothing new is observed.
    """
    seen: Seen = {}
    with remembering(seen):
        while True:
            num_seen, builder = len(seen), Builder(device=kind, hidden=hidden)
            with builder.follow():
                built = make()
            if len(seen) == num_seen:
                return built, builder


def _as_data_allow(case: Case, work: Callable[[str | None], T]) -> T:
    """Return what `work` returns without a routing or, if that depends on data, with the case's routing."""
    try:
        return work(None)
    except _DependsOnData:
        return work(case.routing or SETTINGS["routing"].choices[0])


def _hidden(case: Case, calibration: Calibration | None, workspace_bytes: int) -> Hidden:
    """Return the function for operators' hidden bytes: as measured, else by PyTorch's rules for the device.

    `workspace_bytes` is the size of cuBLAS's workspace if each product allocates it, else 0.
    """
    if kind_of(case) == "cpu":
        return _measured_or(temporary_bytes, calibration)
    return _measured_or(taken_on_cuda(known_rates(case.device, calibration), workspace_bytes), calibration)


def _trainer(built: Assembled, kind: str) -> tuple[torch.optim.Optimizer, Step]:
    """Return the optimizer and the step of an assembled case, as they are on this kind of device."""
    with HostMarking() if kind == "cuda" else nullcontext():
        optimizer, step = built.trainer()
    if kind == "cuda":
        foreach(optimizer)
    return optimizer, step


def observe_case(case: Case, build: Build | None = None, *, in_calls: bool = False) -> Observation:
    """Observe in one forward how the blocks of the case's model feed each other. Raises as `predict` does."""

    def observed(routing: str | None) -> Observation:
        with unfused(), _fakes(case, routing) as fakes:
            workload = assemble(case.baseline, build=build, in_calls=in_calls).workload
            with unseen(), fakes.in_step():
                return observe(workload)

    return _as_data_allow(case, observed)


def taken_on_cuda(gpu: Rates | None, workspace_bytes: int) -> Hidden:
    """Return the function for operators' hidden bytes by PyTorch's rules for this GPU; None is an unknown GPU."""
    copying = convolutions.taking_copies(temporary_bytes, convolutions.machine_of(gpu, workspace_bytes))
    return matmul_workspaces.taking_workspaces(taking_buffers(copying, gpu), workspace_bytes)


@contextmanager
def _fakes(case: Case, routing: str | None, calibration: Calibration | None = None) -> Iterator[FakeTensors]:
    rates = known_rates(case.device, calibration)
    capability = (rates.compute_capability,) if rates else ()
    on_cuda = kind_of(case) == "cuda"
    with (
        fake_tensors(routing) as fakes,
        user_hooks(on_cuda=on_cuda),
        cuda_like(*capability) if on_cuda else kept_by_layers(),
    ):
        try:
            yield fakes
        except DATA_DEPENDENT as error:
            raise _DependsOnData(
                f"what the model does depends on its data ({error}){_where(error)}; `gcprof run` measures it, and "
                "`gcprof rehearse` takes zeros for what it reads"
            ) from error
        except UnsupportedOperatorException as error:
            raise Unsupported(
                f"'{error.func}' does not say what it returns without running{_where(error)}, so it cannot be traced; "
                "`gcprof run` measures it, and torch.library.register_fake lets it be predicted"
            ) from error


def _where(error: Exception) -> str:
    line = innermost_line(error)
    return f", at {line}" if line else ""


def kind_of(case: Case) -> str:
    return "cpu" if case.twin.device == "cpu" else "cuda"


def known_rates(device: str, calibration: Calibration | None = None) -> Rates | None:
    """Return the rates of the device or, if only its kind is given, of the calibration's GPU; None if unknown."""
    word = device.removeprefix(FAKE)
    if word not in ("cpu", "cuda") and not gpu_kinds.of(word):
        return gpu_specs.find(word)
    return gpu_specs.of_device(calibration.device_name) if calibration and calibration.device_name else None


def workspace_bytes(case: Case, calibration: Calibration | None) -> int:
    """Return the bytes of cuBLAS's workspace; a device without known rates counts as a GPU before Hopper."""
    if kind_of(case) == "cpu":
        return 0
    rates = known_rates(case.device, calibration)
    return matmul_workspaces.given_workspace(gpu_specs.workspace_bytes(rates) if rates else gpu_specs.SMALL_WORKSPACE)


def _measured_or(foreseen: Hidden, calibration: Calibration | None) -> Hidden:
    """Return a function for a call's hidden bytes: those measured in the calibration, else those of `foreseen`."""
    measured_bytes = calibration.hidden_bytes if calibration else {}
    names = {call.partition("(")[0] for call in measured_bytes}

    def hidden(operator: Any, arguments: Any, keywords: Any) -> int:
        call = call_signature(operator, arguments, keywords) if names and operator_name(operator) in names else ""
        measured = measured_bytes.get(call)
        return foreseen(operator, arguments, keywords) if measured is None else Measured(measured)

    return hidden
