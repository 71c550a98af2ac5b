"""Trial -> Record without the device: one traced step under fake tensors. Knows nothing of measuring."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from profiler import __version__, rates
from profiler.assemble import Assembled, assemble
from profiler.case import FAKE, Case, Trial
from profiler.errors import Unsupported
from profiler.rates import Rates
from profiler.record import Environment, Note, Readings, Record
from profiler.signature import name, signature
from profiler.timeline import Followed, Trace
from profiler.trace import allocator, roofline
from profiler.trace.cuda_like import cuda_like, foreach
from profiler.trace.fake import fake_tensors
from profiler.trace.step import follow
from profiler.trace.summary import readings
from profiler.trace.tracer import Hidden

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)


def predict(trial: Trial, *, on_stage: Callable[[str], None] = lambda stage: None) -> Record:
    """What `measure` would find of a trial's memory, and an estimate of its time where the device's rates are known.

    Raises Unsupported where model or strategy cannot be had or followed, and whatever the model raises.
    """
    began = time.monotonic()
    on_stage("build")
    case = trial.case
    built, trace, num_guesses = trace_case(case, hidden_bytes=trial.hidden_bytes, on_stage=on_stage)
    known = _rates(case.device)
    return Record(
        case=case,
        round=trial.round,
        outcome="ok",
        built=built.describe(),
        readings=Readings(**readings(trace, _reserved(trace)), **_seconds(trace, known, case.precision)),
        environment=_environment(known),
        notes=(*_notes(built, case), *_stated(trial, known, num_guesses)),
        stage_seconds={"build": time.monotonic() - began},
    )


def follow_case(trial: Trial) -> Followed:
    """One traced step of the trial's case. Raises as `predict` does."""
    built, trace, num_guesses = trace_case(trial.case, hidden_bytes=trial.hidden_bytes)
    notes = (*_notes(built, trial.case), *_stated(trial, None, num_guesses))
    return Followed(
        trace=trace,
        blocks=built.workload.blocks,
        split=built.applied.split,
        remarks=tuple(note.text for note in notes),
    )


def trace_case(
    case: Case,
    *,
    hidden_bytes: dict[str, int] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    with_saves: bool = False,
) -> tuple[Assembled, Trace, int]:
    """The case's model with its strategy, fake; one traced step of it; and how many values of data were guessed.

    `with_saves` is for `compose`. Raises as `predict` does.
    """
    kind = "cpu" if case.twin.device == "cpu" else "cuda"
    with fake_tensors() as fakes, cuda_like() if kind == "cuda" else nullcontext():
        try:
            built = assemble(case)
            if built.applied.changes_kernels:
                raise Unsupported(f"{case.strategy} makes its own kernels when it runs: they cannot be foreseen")
            on_stage("memory")
            optimizer, step = built.trainer()
            if kind == "cuda":
                foreach(optimizer)
            trace = follow(
                built.workload,
                optimizer,
                step,
                device=kind,
                hidden=_hidden(hidden_bytes),
                workspace_bytes=_workspace_bytes(case.device) if kind == "cuda" else 0,
                with_saves=with_saves,
            )
        except DATA_DEPENDENT as error:
            raise Unsupported(f"what the model does depends on its data ({error})") from error
    return built, trace, fakes.num_guesses


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


def _rates(device: str) -> Rates | None:
    """What is known of the device; nothing where only its kind is given."""
    word = device.removeprefix(FAKE)
    return None if word in ("cpu", "cuda") else rates.find(word)


def _reserved(trace: Trace) -> dict[str, int] | None:
    """What CUDA's caching allocator reserves in a second step, which is the one that is measured."""
    return allocator.reserved(trace) if trace.device == "cuda" else None


def _workspace_bytes(device: str) -> int:
    """What cuBLAS keeps; where only the kind of device is given, as before Hopper."""
    known = _rates(device)
    return rates.workspace_bytes(known) if known else rates.SMALL_WORKSPACE


def _seconds(trace: Trace, known: Rates | None, precision: str) -> dict[str, Any]:
    if known is None or trace.uses_host:  # the way to the host is not one of the device's rates
        return {}
    return {f"{phase}_seconds": (value,) for phase, value in roofline.seconds(trace, known, precision).items()}


def _stated(trial: Trial, known: Rates | None, num_guesses: int) -> list[Note]:
    """How sure the prediction is, as far as it can be said."""
    blind = "not calibrated: what convolutions and other kernels take besides their results is not in it"
    guessed = "the model asks for values of its data: tests were taken as passed, numbers as 0"
    texts = {
        "GCP015": blind if trial.hidden_bytes is None else None,
        "GCP016": roofline.stated_error(known, trial.case.precision) if known else None,
        "GCP017": guessed if num_guesses else None,
    }
    return [Note(code=code, text=text) for code, text in texts.items() if text]


def _hidden(known: dict[str, int] | None) -> Hidden | None:
    """What operators of the same signature were measured to take."""
    if not known:
        return None
    names = {call.partition("(")[0] for call in known}

    def hidden(operator: Any, arguments: Any, keywords: Any) -> int:
        return known.get(signature(operator, arguments, keywords), 0) if name(operator) in names else 0

    return hidden


def _notes(built: Assembled, case: Case) -> tuple[Note, ...]:
    """The strategy's own, but for those that are about the CPU that a prediction for CUDA was traced on."""
    on_cuda = case.twin.device == "cuda"
    notes = tuple(note for note in built.applied.notes if not (on_cuda and note.code == "GCP008"))
    if not any(isinstance(module, nn.RNNBase) for module in built.workload.module.modules()):
        return notes
    text = "recurrent layers are followed step by step; their fused kernels keep more, so that the peak is higher"
    return (*notes, Note(code="GCP018", text=text))
