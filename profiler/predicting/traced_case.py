"""Traces one step of a case under fake tensors, as its device would run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from profiler.core import gpu_specs
from profiler.core.case import SETTINGS, Calibration, Case
from profiler.core.devices import CUDA, parse
from profiler.core.errors import Unsupported
from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import Trace
from profiler.core.user_code import innermost_line
from profiler.measuring.meters.operators import call_signature, operator_name
from profiler.planning.lever_code import Way
from profiler.predicting.cuda_rules import cuda_like, foreach
from profiler.predicting.fake_step import Hidden, follow, user_hooks
from profiler.predicting.fake_tensors import FakeTensors, fake_tensors, unseen
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.block_segments import norms
from profiler.training.observed_forward import Observation, observe
from profiler.training.strategies import written

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
RANKS_ARE_REHEARSED = "ranks are rehearsed, not estimated: --device h100, on Linux on x86-64 with a CUDA build of torch"
T = TypeVar("T")


class Assumed(NamedTuple):
    """What a trace assumes because only real data would decide it."""

    num_guesses: int = 0  # values that were guessed: `all()` as true, other tests as false, floats as 0
    routing: str | None = None  # the assumed routing of tokens, if sizes in the step depend on it
    is_unfused: bool = False  # whether code that is compiled ran as it was written, without the kernels that fuse it


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

    A step whose sizes depend on its data is traced again with the case's routing. `with_saves` is that of `follow`,
    `build` and `in_calls` are those of `assemble`. Raises as `predict` does.
    """
    if case.ranks:
        raise Unsupported(RANKS_ARE_REHEARSED)
    kind = kind_of(case)

    def traced(routing: str | None) -> tuple[Assembled, Trace, Assumed]:
        with _fakes(case, routing) as fakes:
            built = assemble(case, build=build, in_calls=in_calls)
            if built.applied.changes_kernels:
                raise Unsupported(f"{case.label} makes its own kernels when it runs: they cannot be predicted")
            on_pass("memory")
            optimizer, step = built.trainer()
            if kind == "cuda":
                foreach(optimizer)
            with unseen(), fakes.in_step():
                trace = follow(
                    built.workload,
                    optimizer,
                    step,
                    device=kind,
                    hidden=_measured(calibration),
                    workspace_bytes=workspace_bytes(case, calibration),
                    with_saves=with_saves,
                    seed=partial(built.seed, 2),
                )
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
            plan = written(workload, applied, str(case.strategy))
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
    on_cuda = kind_of(case) == "cuda"
    with fake_tensors(routing) as fakes, user_hooks(on_cuda=on_cuda), cuda_like() if on_cuda else nullcontext():
        try:
            yield fakes
        except (*DATA_DEPENDENT, UnsupportedOperatorException) as error:
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


def kind_of(case: Case) -> str:
    return "cpu" if case.twin.device == "cpu" else "cuda"


def known_rates(device: str, calibration: Calibration | None = None) -> Rates | None:
    """Return the rates of the device or, if only its kind is given, of the calibration's GPU; None if unknown."""
    name = parse(device).name
    if name not in ("cpu", "cuda") and not name.startswith(CUDA):
        return gpu_specs.find(name)
    return gpu_specs.of_device(calibration.device_name) if calibration and calibration.device_name else None


def workspace_bytes(case: Case, calibration: Calibration | None) -> int:
    """Return the bytes of cuBLAS's workspace; a device without known rates counts as a GPU before Hopper."""
    if kind_of(case) == "cpu":
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
