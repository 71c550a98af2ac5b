"""Trial -> Record without the device: one traced step under fake tensors. Knows nothing of measuring."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from profiler import __version__
from profiler.assemble import Assembled, assemble
from profiler.case import Case, Trial
from profiler.errors import Unsupported
from profiler.record import Applied, Built, Environment, Readings, Record
from profiler.signature import name, signature
from profiler.timeline import Trace
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
    built, trace = trace_case(trial.case, hidden_bytes=trial.hidden_bytes, on_stage=on_stage)
    return Record(
        case=trial.case,
        round=trial.round,
        outcome="ok",
        built=_describe(built),
        readings=Readings(**readings(trace)),
        environment=environment(trial.case.device),
        notes=_notes(built.applied, trial.case),
        stage_seconds={"build": time.monotonic() - began},
    )


def trace_case(
    case: Case,
    *,
    hidden_bytes: dict[str, int] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> tuple[Assembled, Trace]:
    """The case's model with its strategy, fake, and one traced step of it."""
    kind = "cpu" if case.twin.device == "cpu" else "cuda"
    with fake_tensors(), cuda_like() if kind == "cuda" else nullcontext():
        try:
            built = assemble(case)
            if built.applied.changes_kernels:
                raise Unsupported(f"{case.strategy} makes its own kernels when it runs: they cannot be foreseen")
            on_stage("memory")
            optimizer, step = built.trainer()
            if kind == "cuda":
                foreach(optimizer)
            return built, follow(built.workload, optimizer, step, device=kind, hidden=_hidden(hidden_bytes))
        except DATA_DEPENDENT as error:
            raise Unsupported(f"what the model does depends on its data: {str(error).splitlines()[0]}") from error


def environment(device: str) -> Environment:
    """Versions of this process; of the device, what is known of its kind."""
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _hidden(known: dict[str, int] | None) -> Hidden | None:
    """What operators of the same signature were measured to take."""
    if not known:
        return None
    names = {call.partition("(")[0] for call in known}

    def hidden(operator: Any, arguments: Any, keywords: Any) -> int:
        return known.get(signature(operator, arguments, keywords), 0) if name(operator) in names else 0

    return hidden


def _describe(built: Assembled) -> Built:
    workload = built.workload
    return Built(
        num_parameters=sum(parameter.numel() for parameter in workload.module.parameters()),
        num_blocks=len(workload.blocks),
        data=workload.data,
        split=built.applied.split,
    )


def _notes(applied: Applied, case: Case) -> tuple[Any, ...]:
    """The strategy's own, but for those that are about the CPU that a prediction for CUDA was traced on."""
    on_cuda = case.twin.device == "cuda"
    return tuple(note for note in applied.notes if not (on_cuda and note.code == "GCP008"))
