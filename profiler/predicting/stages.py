"""Builds a trial's chain of stages for planning: bytes from a traced step, seconds timed or estimated from rates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf

import msgspec
from msgspec import UNSET

from profiler.core import gpu_specs
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import NotOnce, Unsupported, UserError
from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import Trace, live
from profiler.core.units import parse_budget
from profiler.measuring.devices import available_bytes, open_device
from profiler.measuring.failure_causes import UNKNOWN
from profiler.planning import simulator
from profiler.planning.chain import Chain, Stage
from profiler.predicting import stage_seconds
from profiler.predicting.prediction import trace
from profiler.predicting.stage_operators import chain_of, estimated_seconds, held, refuse_backward_in_forward, spans
from profiler.predicting.stage_seconds import EVERY, NOTHING, PLAIN, TOGETHER, WHOLE, Seconds, StageSpan
from profiler.predicting.traced_case import known_rates, observe_case, taken_workspace, workspace_bytes
from profiler.training.assemble import Build
from profiler.training.blocks import refuse_none
from profiler.training.observed_forward import observe
from profiler.training.own_checkpoints import compiled_modules, is_left_alone
from profiler.training.strategies import fingerprint, offered
from profiler.training.workload import Workload

# Parts of PyTorch's errors: a saved result is overwritten before the backward; a recompute runs other operators.
UNSAVABLE = "has been mutated", UNKNOWN
ESTIMATED = "the costs of the stages are estimated, not rehearsed: the model is compiled"


def stages(trial: Trial, *, build: Build | None = None, on_step: Callable[[str], None] = lambda step: None) -> Chain:
    """Return what each stage of the trial's model costs. The device must be present, or its rates known.

    Bytes are those of a traced step: of a rehearsed case on its hollow device, unless it is compiled, which a note of
    the chain says; else under fake tensors, with operators' hidden bytes as measured if the trial has a calibration. A
    pinned stage separates blocks that do not feed each other alone, so that no plan computes them together. Without the
    pass `time`, seconds are 0 and there are no save options; seconds are also 0 if no plan can fit the trial's budget.
    `build` replaces the catalogue's model, for predicted trials only. `on_step` is called with a text before each
    timed step. Raises UserError if nothing is known of the device's time, Unsupported if the blocks do not run once
    each, in order, or the forward runs a backward, and whatever the model raises.
    """
    assert build is None or trial.case.is_predicted, "seconds are measured only for the catalogue's models"
    try:
        return _stages(trial, build, on_step, in_calls=False)
    except NotOnce:
        return _stages(trial, build, on_step, in_calls=True)


def _stages(trial: Trial, build: Build | None, on_step: Callable[[str], None], *, in_calls: bool) -> Chain:
    case, rates = trial.case.uncheckpointed, _rates(trial)
    case = case if case.is_rehearsed else case.foreseen
    built, traced, assumed = trace(trial, case, with_saves=True, in_calls=in_calls, build=build)
    workload = built.workload
    compiled = compiled_modules(workload.module)
    if case.is_rehearsed and compiled:  # a hollow device does not see operators of compiled code
        foreseen = msgspec.structs.replace(trial, case=trial.case.foreseen)
        return msgspec.structs.replace(stages(foreseen, on_step=on_step), notes=(ESTIMATED,))
    refuse_none(workload.blocks)
    if any(is_left_alone(name, compiled) for name in workload.blocks):
        raise Unsupported(
            "the model compiles a module around its blocks, in which they have no costs of their own, and a checkpoint "
            "of one breaks the compiled code; compile each block instead (block.compile()), or plan without compiling"
        )
    refuse_backward_in_forward(traced)
    observed = observe(workload) if case.is_rehearsed else observe_case(case, build, in_calls=in_calls)
    stage_spans = spans(traced, workload.blocks, linked=observed.linked)
    prints = fingerprint(workload.module, workload.blocks, workload.calls)
    if rates is None and "time" in trial.passes:
        stage_spans = [msgspec.structs.replace(span, kind=_kind(traced, span, workload)) for span in stage_spans]
    del built, workload, observed  # a hollow device has one model at a time
    inside = [one.name for span in stage_spans if span.blocks for one in traced.operators[span.first - 1 : span.last]]
    has_saves = "time" in trial.passes and not assumed.is_unfused  # Inductor overwrites what would be saved
    found = {
        save: _selective(trial, case, save, build, in_calls=in_calls) for save in (offered(inside) if has_saves else ())
    }
    selective = {save: of for save, of in found.items() if of is not None}

    def chain(seconds: Sequence[Seconds]) -> Chain:
        made = chain_of(
            traced, stage_spans, prints, seconds, options={save: of for save, (_, _, of) in selective.items()}
        )
        workspace = taken_workspace(traced, workspace_bytes(case.foreseen, trial.calibration))
        return msgspec.structs.replace(made, workspace_bytes=workspace, notes=assumed.remarks)

    if trial.budget is not UNSET:
        without_times = chain([NOTHING] * len(stage_spans))
        budget_bytes = parse_budget(trial.budget, whole_bytes=simulator.whole_bytes(without_times))
        if simulator.largest_stage(without_times)[1] > budget_bytes:
            return without_times
    return chain(_seconds(trial, traced, stage_spans, selective, rates, on_step=on_step, in_calls=in_calls))


def _rates(trial: Trial) -> Rates | None:
    """Return the rates of a device that is absent or hollow; None if time is measured or not requested."""
    if "time" not in trial.passes:
        return None
    if not trial.case.is_predicted:
        device = open_device(trial.case.device)
        return gpu_specs.of_device(str(device.facts().device_name)) if device.is_hollow else None
    rates = known_rates(trial.case.device, trial.calibration)
    if rates is None:
        message = f"the speed of '{trial.case.device}' is not known"
        raise UserError(message, hint="name a GPU: --device fake:h100")
    return rates


def _seconds(
    trial: Trial,
    trace: Trace,
    stage_spans: Sequence[StageSpan],
    selective: dict[str, _Selective],
    rates: Rates | None,
    *,
    on_step: Callable[[str], None],
    in_calls: bool,
) -> list[Seconds]:
    case = trial.case.uncheckpointed
    if rates is not None:
        clocked = {save: (selective_trace, of) for save, (selective_trace, of, _) in selective.items()}
        return estimated_seconds(trace, stage_spans, clocked, rates, case.precision)
    if "time" not in trial.passes:
        return [NOTHING for _ in stage_spans]
    plain_peak = max(live(trace))
    kept = dict.fromkeys((WHOLE, PLAIN, TOGETHER), plain_peak)
    peaks = {**kept, **{save: max(live(of)) for save, (of, _, _) in selective.items()}}
    total = None if case.device.startswith("cpu") else open_device(case.device).facts().device_bytes
    room = available_bytes() if total is None else total  # what a step may take without running out of memory
    return stage_seconds.seconds(
        case,
        stage_spans,
        list(selective),
        lambda way: way == EVERY or peaks[way] <= room,
        limit_seconds=inf if trial.limit_seconds is None else trial.limit_seconds,
        on_step=on_step,
        in_calls=in_calls,
    )


def _kind(trace: Trace, span: StageSpan, workload: Workload) -> Hashable:
    """Return what decides whether stages take equal time: module classes, parameter shapes and operators."""
    modules = [workload.block(workload.blocks[index]) for index in span.blocks]
    classes = tuple(type(part).__qualname__ for module in modules for part in module.modules())
    shapes = tuple(tuple(parameter.shape) for module in modules for parameter in module.parameters())
    forward = trace.operators[span.first - 1 : span.last]
    return classes, shapes, tuple((operator.name, operator.flops, operator.moved_bytes) for operator in forward)


_Selective = tuple[Trace, dict[str, StageSpan], dict[str, Stage]]  # the last two by the name of the stage


def _selective(trial: Trial, case: Case, save: str, build: Build | None, *, in_calls: bool) -> _Selective | None:
    """Trace a step with every block under a save option; None if PyTorch cannot save its results."""
    case = msgspec.structs.replace(case, strategy=Choice.of("selective", {"save": save}))
    try:
        built, traced, _ = trace(trial, case, in_calls=in_calls, build=build)
    except RuntimeError as error:
        if any(words in str(error) for words in UNSAVABLE):
            return None
        raise
    stage_spans = spans(traced, built.workload.blocks)
    bytes_of = {stage.name: stage for stage in held(traced, stage_spans)}
    return traced, {span.name: span for span in stage_spans if span.blocks}, bytes_of
