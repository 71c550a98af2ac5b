"""Answers for a caller's model: rehearsed in a process of its own where PyTorch can run there, else estimated here."""

from __future__ import annotations

import atexit
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import cloudpickle
import msgspec
import torch
from torch import nn

from profiler.core.case import Case, Choice, Trial, decode
from profiler.core.errors import Unsupported, UserError
from profiler.core.gpu_specs import parse, to_predict
from profiler.core.record import Record
from profiler.engines import Engine, local
from profiler.planning.chain import Chain
from profiler.predicting import prediction
from profiler.predicting.stages import stages
from profiler.predicting.traced_case import known_rates
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training.assemble import Build
from profiler.training.known_values import MOST_FRACTIONS, MOST_WHOLE
from profiler.training.models import user
from profiler.training.optimizers import hooks_of
from profiler.workflows.absent_gpus import for_gpus
from profiler.workflows.in_process.arguments import Given, fresh_workload, in_words_of_python, undisturbed
from profiler.workflows.planner import GATE

T = TypeVar("T")
_engines: dict[int, local.Local] = {}  # by process: one that is forked has none


class Estimates:
    """An engine in this process, whose steps are traced; `build` makes the model, if it is no word."""

    def __init__(self, build: Build | None) -> None:
        self._build = build

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        return (prediction.predict(trial, build=self._build) for trial in plan)

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """Answer as the function of that name does in a child, and raise what it would have sent."""
        name = entry.rpartition(":")[2]
        if name == "choices":
            return {"choices": prediction.choices(decode(text, Case), build=self._build)}
        trial = decode(text, Trial)
        if name == "stage":
            return {"chain": self._chain(trial)}
        with_choices = name == "follow_with_choices"
        return {"followed": prediction.follow_case(trial, with_choices=with_choices, build=self._build)}

    def _chain(self, trial: Trial) -> Chain:
        """Return the stages; for a device of unknown speed, each block's forward takes 1, its backward 2."""
        if known_rates(trial.case.device):
            return stages(trial, build=self._build)
        chain = stages(msgspec.structs.replace(trial, passes=("memory",)), build=self._build)
        counted = (
            msgspec.structs.replace(
                stage,
                forward_seconds=len(stage.blocks),
                backward_seconds=2 * len(stage.blocks),
                early_stop_seconds=None,  # a recompute takes as long as a forward
                inner_recompute_seconds=None,
            )
            for stage in chain.stages
        )
        return msgspec.structs.replace(chain, stages=tuple(counted))


class NotRehearsed(Exception):
    """Raised for what can only be estimated; its text is why, empty where an estimate was asked for."""


def answer(ask: Callable[[Engine, Case], T], given: Given, **words: Any) -> tuple[T, str]:
    """Return what is asked of the caller's model, and why it is estimated if it could be rehearsed.

    `ask` gets the engine that answers and the case, without its strategy. Nothing is changed in this process. Raises
    UserError for what cannot be asked for, or rehearsed if it must be.
    """
    try:
        return rehearsed(ask, given, **words), ""
    except NotRehearsed as error:
        why = str(error)
    return _estimated(ask, given, **words), why and f"estimated, not rehearsed: {why}"


@in_words_of_python()
def rehearsed(ask: Callable[[Engine, Case], T], given: Given, *, device: str, **words: Any) -> T:
    """Return what is asked of a rehearsed model, as `answer` does. Raises NotRehearsed if it can only be estimated."""
    why: list[str] = []
    request = Request(device=for_gpus(device or device_choice.SEVERAL, say=why.append), **words)
    case, build = given.case(request, device_choice.any_device), given.factory()
    if not case.is_rehearsed:
        raise NotRehearsed("".join(why).rpartition("not rehearsed: ")[2])
    try:
        with TemporaryDirectory(prefix="gcprof-") as folder:
            if build is not None:
                path = Path(folder) / "model.pickle"
                pack(given.parts if isinstance(given.model, nn.Module) else given.model, path)
                case = msgspec.structs.replace(case, model=Choice.of(user.SENT, {"path": path}))
            return ask(_engine(), case)
    except (Unsupported, UserError) as error:
        if parse(device).is_rehearsed or (isinstance(error, UserError) and error.exit_code == GATE):
            raise
        raise NotRehearsed(str(error).replace(user.SENT, "the model")) from error


@undisturbed
def _estimated(ask: Callable[[Engine, Case], T], given: Given, *, device: str, **words: Any) -> T:
    request = Request(device=to_predict(device or device_choice.SEVERAL), **words)
    case = given.case(request, device_choice.any_device)
    engine: Any = Estimates(fresh_workload(given.factory()))
    return ask(engine, case)


def named(case: Case, given: Given) -> Case:
    """Return the case with the model's own name, where it was sent to another process by a file."""
    return case if isinstance(given.model, str) else msgspec.structs.replace(case, model=Choice(given.name))


def _engine() -> Engine:
    """Return the engine of this process, whose server stays until the process ends."""
    if os.getpid() not in _engines:
        engine = _engines[os.getpid()] = local.connect(rehearses=True, measures=False).__enter__()
        atexit.register(engine.__exit__)
    return _engines[os.getpid()]


def pack(parts: Any, path: Path) -> None:
    """Write a tuple (module, batch[, loss[, optimizer]]) or a factory as `user.unpack` reads it, and change nothing.

    What the caller's script or notebook defines is sent whole, what it imports by name. Raises Unsupported for what
    cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(parts)
    except Exception as error:  # pickling calls the user's code, which may raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"it cannot be pickled: {why}") from error
    switches = {name: read() for name, (read, _) in user.SWITCHES.items()}
    path.write_bytes(pickle.dumps((sys.path, switches, file.getvalue())))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, user.Storage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        if isinstance(obj, torch.Generator) and obj.device.type == "cpu":
            return user.generator, (obj.get_state(),)
        return super().reducer_override(obj)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise pickle.PicklingError(f"a {type(tensor).__name__} of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        shared = self._storages.setdefault(storage._cdata, user.Storage(storage.nbytes()))
        place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        is_parameter = isinstance(tensor, nn.Parameter)
        made = shared, tensor.dtype, *place, tensor.requires_grad, is_parameter, _values(tensor)
        state = dict(vars(tensor)), [*(tensor._backward_hooks or {}).values()], [*hooks_of(tensor).values()]
        return (user.tensor, made, state, None, None, user.set_state) if any(state) else (user.tensor, made)


def _values(tensor: torch.Tensor) -> bytes | None:
    """Return the values of a tensor that code may read: small ones and masks; None for weights and large data."""
    most = MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE
    if tensor.requires_grad or tensor.is_meta or tensor.is_complex() or not 0 < tensor.numel() <= MOST_WHOLE:
        return None
    with torch.no_grad():
        if tensor.numel() > most and not bool(((tensor == 0) | (tensor == 1)).all()):
            return None
        return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
