"""Rehearses a caller's model in a process of its own, where PyTorch's own CUDA code says the bytes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from torch import nn

from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import Unsupported, UserError
from profiler.core.record import Note, Record
from profiler.engines import Engine, local
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training.models import live
from profiler.workflows.in_process.arguments import Model, case_of, factory, in_words_of_python, name_of
from profiler.workflows.in_process.packing import pack
from profiler.workflows.instrument import for_gpus
from profiler.workflows.planner import GATE

OUTCOMES = ("ok", "out_of_memory")  # of steps that the device decided
T = TypeVar("T")
_engines: dict[int, local.Local] = {}  # by process: one that is forked has none


@in_words_of_python()
def rehearsed(
    ask: Callable[[Engine, Case], T], model: Model, batch: Any, loss: Any, optimizer: str, *, device: str, **words: Any
) -> tuple[T | None, str]:
    """Return what is asked of the caller's model on a hollow GPU; None, and why, where that is to be estimated.

    `ask` gets an engine and the case, without its strategy. Why is empty for a device that is not rehearsed. Nothing is
    changed in this process. Raises UserError for what cannot be asked for, or rehearsed if it must be.
    """
    why: list[str] = []
    word = for_gpus(device or device_choice.SEVERAL, say=why.append)
    case = case_of(model, Request(device=word, **words), optimizer, device_choice.any_device)
    build = factory(model, batch, loss)
    if not case.is_rehearsed:
        return None, "".join(why).removeprefix("note: ")
    try:
        with TemporaryDirectory(prefix="gcprof-") as folder:
            if build is not None:
                path = Path(folder) / "model.pickle"
                parts = (model, batch) if loss is None else (model, batch, loss)
                pack(parts if isinstance(model, nn.Module) else model, path)
                case = msgspec.structs.replace(case, model=Choice.of(live.NAME, {"path": path}))
            return ask(_engine(), case), ""
    except (Unsupported, UserError) as error:
        if device_choice.is_rehearsal(device) or (isinstance(error, UserError) and error.exit_code == GATE):
            raise
        return None, f"estimated, not rehearsed: {str(error).replace(live.NAME, 'the model')}"


def record_of(engine: Engine, case: Case) -> Record:
    """Return the record of a case. Raises Unsupported if its step did not come to its end."""
    (record,) = engine.run([Trial(case=case)])
    if record.outcome not in OUTCOMES:
        raise Unsupported(record.detail or record.outcome)
    return record


def named(case: Case, model: Model) -> Case:
    """Return the case with the model's own name, where it was sent to another process by a file."""
    return case if isinstance(model, str) else msgspec.structs.replace(case, model=Choice(name_of(model)))


def with_reason(record: Record, why: str) -> Record:
    """Return the estimate with a note on why it is not rehearsed, if there is a reason."""
    return msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP068", text=why))) if why else record


def _engine() -> Engine:
    """Return the engine of this process, whose server stays until the process ends."""
    if os.getpid() not in _engines:
        engine = _engines[os.getpid()] = local.connect(rehearses=True, measures=False).__enter__()
        atexit.register(engine.__exit__)
    return _engines[os.getpid()]
