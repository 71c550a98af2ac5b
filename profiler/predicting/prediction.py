"""Trial -> Record without the device: one traced step under fake tensors. Knows nothing of measuring."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from profiler import __version__
from profiler.analysis import live_bytes
from profiler.core import gpu_kinds, gpu_specs
from profiler.core.case import FAKE, Calibration, Case, Trial
from profiler.core.errors import Unsupported
from profiler.core.gpu_specs import Rates
from profiler.core.record import Environment, Note, Readings, Record, Timeline
from profiler.core.trace_data import Followed, Trace, by_category
from profiler.measuring.meters.timeline import timeline
from profiler.measuring.op_signature import name, signature
from profiler.predicting.trace import allocator, convolutions, products, roofline, settings
from profiler.predicting.trace.buffers import taking_buffers
from profiler.predicting.trace.building import Builder
from profiler.predicting.trace.cuda_semantics import cuda_like, foreach
from profiler.predicting.trace.elementwise import on_parts
from profiler.predicting.trace.fake_tensors import Fakes, fake_tensors, unseen
from profiler.predicting.trace.host_state import Marking, host_state
from profiler.predicting.trace.step import Step, follow, keeps_workspaces
from profiler.predicting.trace.summary import readings
from profiler.predicting.trace.temporaries import temporary_bytes
from profiler.predicting.trace.tracer import Hidden
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.strategies.observe import Observation, observe

NUM_LARGEST = 5  # blocks that a record names at its peak
DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)


def predict(
    trial: Trial, *, on_stage: Callable[[str], None] = lambda stage: None, build: Build | None = None
) -> Record:
    """What `measure` would find of a trial's memory, and an estimate of its time where the device's rates are known.

    `build` stands in for the catalogue's model. Raises Unsupported where model or strategy cannot be had or followed,
    and whatever the model raises.
    """
    began = time.monotonic()
    on_stage("build")
    case = trial.case
    built, trace, num_guesses = trace_case(case, calibration=trial.calibration, on_stage=on_stage, build=build)
    known = known_rates(case.device, trial.calibration)
    seconds = _seconds(trial, trace, known, build)
    trace, reserved = _allocated(trace)
    return Record(
        case=case,
        round=trial.round,
        outcome="ok",
        built=built.describe(),
        readings=Readings(**readings(trace, reserved), timeline=_timeline(trace, built.workload.blocks), **seconds),
        environment=_environment(known),
        notes=(*_notes(built, case), *_stated(trial, None if case.parallel else known, num_guesses)),
        stage_seconds={"build": time.monotonic() - began},
    )


def _timeline(trace: Trace, blocks: tuple[str, ...]) -> Timeline:
    """What is live at each operator, and what the largest blocks hold at the peak."""
    peak = live_bytes.peak(trace)
    largest = live_bytes.modules_at(trace, peak.number, blocks=blocks)[:NUM_LARGEST]
    return timeline(
        by_category(trace),
        [(phase, first) for phase, first, last in trace.spans() if first <= last],
        operator=peak.operator,
        module=peak.module,
        modules={share.name: share.nbytes for share in largest},
    )


def follow_case(trial: Trial) -> Followed:
    """One traced step of the trial's case. Raises as `predict` does."""
    built, trace, num_guesses = trace_case(trial.case, calibration=trial.calibration)
    notes = (*_notes(built, trial.case), *_stated(trial, None, num_guesses))
    return Followed(
        trace=_allocated(trace)[0],
        blocks=built.workload.blocks,
        split=built.applied.split,
        remarks=tuple(note.text for note in notes),
    )


def trace_case(
    case: Case,
    *,
    calibration: Calibration | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    with_saves: bool = False,
    with_calls: bool = False,
    build: Build | None = None,
) -> tuple[Assembled, Trace, int]:
    """The case's model with its strategy, fake; one traced step of it; and how many values of data were guessed.

    `with_saves` and `with_calls` are as of `follow`, `build` as of `assemble`. Raises as `predict` does.
    """
    kind, is_kept = _kind(case), keeps_workspaces()
    workspace = products.given_workspace(_workspace_bytes(case.device)) if kind == "cuda" else 0
    hidden = _hidden(case, calibration, 0 if is_kept else workspace)
    builder = Builder(device=kind, hidden=hidden) if kind == "cuda" and not case.parallel else None
    with _rank(case) as rank, _fakes(case) as fakes:
        with builder.follow() if builder else nullcontext():
            built = assemble(case, build=build, mesh=rank.mesh if rank else None)
        if built.applied.changes_kernels:
            raise Unsupported(f"{case.strategy} makes its own kernels when it runs: they cannot be foreseen")
        on_stage("memory")
        optimizer, step = _trainer(built, kind)
        on_host = host_state(optimizer) if kind == "cuda" else nullcontext()
        with on_host, on_parts(optimizer) if rank else nullcontext(), unseen():
            trace = follow(
                built.workload,
                optimizer,
                step,
                device=kind,
                hidden=hidden,
                kept_bytes=workspace if is_kept else 0,
                with_saves=with_saves,
                with_calls=with_calls,
                buckets=rank.buckets.values if rank else None,
                builder=builder,
            )
        if rank:
            rank.refuse_unused()
    return built, trace, fakes.num_guesses


def _hidden(case: Case, calibration: Calibration | None, workspace_bytes: int) -> Hidden:
    """What operators take besides their results: as measured, else by PyTorch's rules for the device.

    `workspace_bytes` are cuBLAS's where a product takes them while it runs, else 0.
    """
    if _kind(case) == "cpu":
        return _measured_or(temporary_bytes, calibration)
    return _measured_or(taken_on_cuda(known_rates(case.device, calibration), workspace_bytes), calibration)


def _trainer(built: Assembled, kind: str) -> tuple[torch.optim.Optimizer, Step]:
    """The optimizer and the step of an assembled case, as they are on this kind of device."""
    with Marking() if kind == "cuda" else nullcontext():
        optimizer, step = built.trainer()
    if kind == "cuda":
        foreach(optimizer)
    return optimizer, step


def observe_case(case: Case, build: Build | None = None) -> Observation:
    """How the blocks of the case's model work together. Raises as `predict` does."""
    with _fakes(case):
        return observe(assemble(case.baseline, build=build).workload)


def taken_on_cuda(gpu: Rates | None, workspace_bytes: int) -> Hidden:
    """What operators take besides their results by PyTorch's rules for this GPU; None is one that is not known."""
    copying = convolutions.taking_copies(temporary_bytes, convolutions.machine_of(gpu, workspace_bytes))
    return products.taking_workspaces(taking_buffers(copying, gpu), workspace_bytes)


@contextmanager
def _fakes(case: Case) -> Iterator[Fakes]:
    known = known_rates(case.device)
    capability = (known.compute_capability,) if known else ()
    with fake_tensors() as fakes, cuda_like(*capability) if _kind(case) == "cuda" else nullcontext():
        try:
            yield fakes
        except DATA_DEPENDENT as error:
            raise Unsupported(f"what the model does depends on its data ({error})") from error


@contextmanager
def _rank(case: Case) -> Iterator[Any]:
    """The first of the case's ranks; None where it has no others."""
    if not case.parallel:
        yield None
        return
    from profiler.predicting.trace.fake_process_group import alone  # noqa: PLC0415  a third of what it takes to import torch itself

    with alone(case.num_ranks) as rank:
        yield rank


def _kind(case: Case) -> str:
    return "cpu" if case.twin.device == "cpu" else "cuda"


def _environment(known: Rates | None) -> Environment:
    """Versions of this process; of the device, what is known of its kind."""
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        device_name=known.name if known else None,
        device_bytes=known.memory_bytes if known else None,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def known_rates(device: str, calibration: Calibration | None = None) -> Rates | None:
    """What is known of the device; where only its kind is given, of the one that was measured."""
    word = device.removeprefix(FAKE)
    if word not in ("cpu", "cuda") and not gpu_kinds.of(word):
        return gpu_specs.find(word)
    return gpu_specs.of_device(calibration.device_name) if calibration and calibration.device_name else None


def _allocated(trace: Trace) -> tuple[Trace, dict[str, int] | None]:
    """The trace with the blocks that CUDA's caching allocator gives a second step, and the reserved bytes by phase.

    A second step is the one that is measured. The environment sets the allocator, as in a run. On the CPU the trace is
    as it was, and the reserved bytes are None.
    """
    if trace.device != "cuda":
        return trace, None
    replayed = allocator.replay(trace, settings.read(os.environ))
    return replayed.trace, replayed.reserved


def _workspace_bytes(device: str) -> int:
    """What cuBLAS keeps; where only the kind of device is given, as before Hopper."""
    known = known_rates(device)
    return gpu_specs.workspace_bytes(known) if known else gpu_specs.SMALL_WORKSPACE


def _seconds(trial: Trial, trace: Trace, known: Rates | None, build: Build | None) -> dict[str, Any]:
    if known is None or trace.uses_host or trial.case.parallel:  # the ways to the host and to other ranks have no rate
        return {}
    case, measured = trial.case, _measured_seconds(trial, known)
    estimate = roofline.seconds(trace, known, case.precision)
    if measured is not None:
        bare = trace if case == case.baseline else trace_case(case.baseline, build=build)[1]
        estimated = roofline.seconds(bare, known, case.precision)["step"]
        estimate = roofline.scaled(estimate, measured=measured, estimated=estimated)
    return {f"{phase}_seconds": (value,) for phase, value in estimate.items()}


def _measured_seconds(trial: Trial, known: Rates) -> float | None:
    """Of the step without checkpointing on the very GPU that is predicted for; None where there is none."""
    calibration = trial.calibration
    return calibration.step_seconds if calibration and calibration.device_name == known.name else None


def _stated(trial: Trial, known: Rates | None, num_guesses: int) -> list[Note]:
    """How sure the prediction is, as far as it can be said."""
    blind = "not calibrated: what convolutions and other kernels take besides their results is not in it"
    guessed = "the model asks for values of its data: tests were taken as passed, numbers as 0"
    texts = {
        "GCP015": blind if trial.calibration is None else None,
        "GCP016": _stated_error(trial, known) if known else None,
        "GCP017": guessed if num_guesses else None,
        "GCP037": _stated_ranks(trial.case) if trial.case.parallel else None,
    }
    return [Note(code=code, text=text) for code, text in texts.items() if text]


def _stated_ranks(case: Case) -> str:
    on_cuda = " without what NCCL takes of the device itself;" if case.twin.device == "cuda" else ""
    return (
        f"one of {case.num_ranks} ranks, the one that holds the most;{on_cuda} no time, for want of a network's rates"
    )


def _stated_error(trial: Trial, known: Rates) -> str:
    is_scaled = _measured_seconds(trial, known) is not None
    return roofline.stated_error(known, trial.case.precision, is_scaled=is_scaled)


def _measured_or(foreseen: Hidden, calibration: Calibration | None) -> Hidden:
    """`foreseen`, but for operators whose signature was measured in the calibration."""
    known = calibration.hidden_bytes if calibration else {}
    names = {call.partition("(")[0] for call in known}

    def hidden(operator: Any, arguments: Any, keywords: Any) -> int:
        measured = known.get(signature(operator, arguments, keywords)) if names and name(operator) in names else None
        return foreseen(operator, arguments, keywords) if measured is None else measured

    return hidden


def _notes(built: Assembled, case: Case) -> tuple[Note, ...]:
    """The strategy's own, but for those that are about the CPU that a prediction for CUDA was traced on."""
    on_cuda = _kind(case) == "cuda"
    notes = tuple(note for note in built.applied.notes if not (on_cuda and note.code == "GCP008"))
    if not any(isinstance(module, nn.RNNBase) for module in built.workload.module.modules()):
        return notes
    text = "recurrent layers are followed step by step; their fused kernels keep more, so that the peak is higher"
    return (*notes, Note(code="GCP018", text=text))
