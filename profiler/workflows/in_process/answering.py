"""Answers for a caller's model: rehearsed in a process of its own where PyTorch can run there, else estimated here.

What is given is checked as the command line does: a factory, a word, or a live module with a batch.
"""

from __future__ import annotations

import atexit
import copy
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, ParamSpec, TypeVar

import cloudpickle
import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from profiler.core import device_choice, own_thread
from profiler.core.case import Case, Choice, Trial, decode, split_choices
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.gpu_specs import FAKE, parse, to_predict
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.engines import Engine
from profiler.engines.local import Local
from profiler.planning.chain import Chain
from profiler.predicting import prediction
from profiler.predicting.fake_tensors import DEEPCOPY
from profiler.predicting.stages import stages
from profiler.predicting.traced_case import known_rates
from profiler.training import kept_state
from profiler.training.assemble import Build
from profiler.training.known_values import MOST_FRACTIONS, MOST_WHOLE
from profiler.training.models import user
from profiler.training.models.user import BY_FACTORY, as_workload, refuse_other_arguments
from profiler.training.optimizers import hooks_of
from profiler.training.workload import Workload
from profiler.workflows import spec
from profiler.workflows.planner import GATE
from profiler.workflows.spec import Request
from profiler.workflows.stages import for_gpus

Model = Callable[[], Any] | nn.Module | str
Optimizer = str | torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | None  # None: SGD is assumed
P = ParamSpec("P")
T = TypeVar("T")
SPREAD = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}  # names of classes
KNOWN = 1024  # elements: the values of larger tensors are not kept in a traced step
HINT = "build returns (module, batch), (module, batch, loss), ...; a module is given with batch= and loss="


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Make errors name keywords instead of options: `device` for `--device`. Invalid becomes a UserError."""
    try:
        yield
    except UserError as error:
        hint = None if error.hint is None else _python(error.hint)
        raise UserError(_python(error.message), hint=hint, exit_code=error.exit_code) from None
    except Unsupported as error:
        raise Unsupported(_python(str(error))) from error
    except Invalid as error:
        raise UserError(str(error), hint=HINT) from error


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function in a thread of its own, one call at a time, and put back what it changes in this process.

    Modes of the caller's thread, as no_grad and autocast, are off in it. Errors name keywords instead of options.
    """

    @wraps(function)
    def called(*arguments: P.args, **keywords: P.kwargs) -> T:
        def work() -> T:
            for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
                torch.cuda.synchronize(device)  # tensors may still be written on a stream of the caller's thread
            with kept_state.put_back(arguments, keywords), in_words_of_python():
                return function(*arguments, **keywords)

        return own_thread.run(work)

    return called


def _python(text: str) -> str:
    text = re.sub(r"'--([a-z-]+) (?:fake:)?([^' ]+)'", r"\1='\2'", text)  # what is to be typed
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda option: option[1].replace("-", "_"), text).replace(FAKE, "")


def fresh_workload(build: Callable[[], Any] | None) -> Build | None:
    """Return a function that builds the workload; None for a word.

    The function raises UserError if the module was made before the trace.
    """
    if build is None:
        return None

    def made() -> Workload:
        workload = as_workload(build())
        _refuse(workload.module, lazy=False)
        if any(not isinstance(parameter, FakeTensor) for parameter in workload.module.parameters()):
            hint = "make it inside build, which is called anew for every trace: def build(): module = MyModel(); ..."
            raise UserError("build returned a module that was made before: tracing would change it", hint=hint)
        return workload

    return made


def refuse_other_strategies(*strategies: object) -> None:
    """Raise UserError for what is neither a word nor a plan, as a loss in a strategy's place."""
    for strategy in strategies:
        if not isinstance(strategy, str | PlanFile | Path):
            message = f"a strategy is a word or a plan, not a {type(strategy).__name__}"
            raise UserError(message, hint="give a loss by its name: loss=criterion")


class Given(NamedTuple):
    """What the caller gives: a model, and with a live module its batch, perhaps a loss and an optimizer."""

    model: Model
    batch: Any
    loss: Any
    optimizer: Optimizer

    @property
    def name(self) -> str:
        """The name of the model in a record."""
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        return self.model if isinstance(self.model, str) else getattr(self.model, "__qualname__", "model")

    @property
    def parts(self) -> tuple[Any, ...]:
        """What a factory of this module would return; an optimizer by its name is of the case."""
        own = None if isinstance(self.optimizer, str) else self.optimizer
        parts = (self.model, self.batch, self.loss, own)
        return parts if own is not None else parts[:3] if self.loss is not None else parts[:2]

    def case(self, words: Request, choose_device: Callable[[str], str]) -> Case:
        """Return the one case asked for, checked as the command line does, without its strategy."""
        word = self.model if isinstance(self.model, str) else None
        named = self.optimizer if isinstance(self.optimizer, str) else None
        if not isinstance(self.model, nn.Module) and self.optimizer is not named:
            kind = f"torch:{type(self.optimizer).__name__}"
            hint = f"optimizer='{kind}:lr=0.1'; a module that is given itself takes the object"
            raise UserError("the optimizer is of another model than the one that is made: name it", hint=hint)
        request = msgspec.structs.replace(words, model=word or "mlp", strategies="none", optimizer=named)
        for name in ("precision", "device", "optimizer", "model"):
            value = getattr(request, name)
            if value and len(split_choices(value)) > 1:
                raise UserError(f"{name}: '{value}' is more than one", hint="ask for each by itself")
        case = spec.check(request, choose_device).trials[0].case
        return case if word else msgspec.structs.replace(case, model=Choice(self.name), batch_size=None)

    def factory(self) -> Callable[[], Any] | None:
        """Return a function that makes a fresh module and batch; None for a word, which the catalogue knows.

        A live module stays as it is: each call returns a copy, which takes no memory while a step is traced. Raises
        UserError for a module without a batch; for one without a loss whose forward does not take the batch as it is;
        and for a batch or a loss if the model brings its own.
        """
        model, batch, loss, _ = self
        if isinstance(model, nn.Module):
            if batch is None:
                raise UserError("a module needs a batch", hint="batch=, as the module takes it, or (inputs, targets)")
            if loss is None:
                try:
                    refuse_other_arguments(model, batch)
                except TypeError as error:
                    message = str(error).replace(BY_FACTORY, "")
                    raise UserError(message, hint="loss=, a function of (output, targets)") from None
            elif not callable(loss):
                hint = "for example loss=torch.nn.functional.cross_entropy"
                raise UserError(f"a loss is a function of (output, targets), not {loss!r}", hint=hint)
            _refuse(model, lazy=True)
            batch = dict(batch) if isinstance(batch, Mapping) else batch
            return _copies(self._replace(batch=batch).parts)
        for name, value in (("batch", batch), ("loss", loss)):
            if value is not None:
                hint = "leave it out, or give a module"
                raise UserError(f"{name} has no effect: the model brings its own", hint=hint)
        return None if isinstance(model, str) else model


def _refuse(module: nn.Module, *, lazy: bool) -> None:
    """Raise UserError for a module that is spread over ranks or, if `lazy`, whose parameters have no shapes yet."""
    for name, part in module.named_modules():
        what = f"{type(module).__name__}: {f'its {name!r}' if name else 'it'} is"
        wrapped = next((kind.__name__ for kind in type(part).__mro__ if kind.__name__ in SPREAD), None)
        if wrapped:
            hint = "give the module that it wraps, as model.module of DistributedDataParallel"
            raise UserError(f"{what} wrapped in {wrapped}", hint=hint)
        if lazy and any(nn.parameter.is_lazy(parameter) for parameter in part.parameters(recurse=False)):
            hint = "call the module once with its batch before"
            raise UserError(f"{what} lazy, and its parameters have no shapes yet", hint=hint)


def _copies(parts: tuple[Any, ...]) -> Callable[[], Any]:
    def made() -> tuple[Any, ...]:
        owned = {id(source): source.clone_state() for source in kept_state.generators(parts)}
        is_traced = isinstance(torch.empty(0), FakeTensor)
        copied = _faking() if is_traced else lambda tensor: tensor.detach().clone()

        def of(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
            """Stand-in for Tensor.__deepcopy__ that also takes results of operators, which hooks may have kept."""
            if tensor.is_leaf and not is_traced:
                return DEEPCOPY(tensor, memo)
            if id(tensor) not in memo:
                memo[id(tensor)] = copied(tensor)
            made: torch.Tensor = memo[id(tensor)]
            return made

        parameters = own_thread.replaced(nn.Parameter, __deepcopy__=of) if is_traced else nullcontext()
        with own_thread.replaced(torch.Tensor, __deepcopy__=of), parameters:
            return copy.deepcopy(parts, owned)  # which takes no generators of torch

    return made


def _faking() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that makes fake tensors of real ones: shapes, types, strides and shared storages are theirs."""
    storages: dict[int, torch.Tensor] = {}

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        storage, is_parameter = tensor.untyped_storage(), isinstance(tensor, nn.Parameter)
        key, size = storage._cdata, storage.nbytes() // tensor.element_size()
        if key not in storages and size == tensor.numel() and tensor.is_contiguous():
            if tensor.requires_grad or is_parameter or size > KNOWN:
                made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            else:  # the traced forward may read its values, such as sizes and rates
                with no_dispatch():
                    values = tensor.detach().tolist()
                made = torch.tensor(values, dtype=tensor.dtype, device="cpu")
            storages[key] = made
        else:
            if key not in storages:
                storages[key] = torch.empty(size, dtype=tensor.dtype, device="cpu")
            known = storages[key]
            flat = known if known.dtype == tensor.dtype else known.detach().reshape(-1).view(tensor.dtype)
            made = flat.detach().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return nn.Parameter(made, tensor.requires_grad) if is_parameter else made.requires_grad_(tensor.requires_grad)

    return faked


class Estimates:
    """An engine in this process, whose steps are traced; `build` makes the model, if it is no word."""

    def __init__(self, build: Build | None) -> None:
        self._build = build

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        return (prediction.predict(trial, build=self._build) for trial in plan)

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool = False) -> dict[str, Any]:
        """Answer as the function of that name does in a child, and raise what it would have sent."""
        name, trial = entry.rpartition(":")[2], decode(text, Trial)
        if name == "stage":
            return {"answer": self._chain(trial)}
        with_choices = name == "follow_with_choices"
        return {"answer": prediction.follow_case(trial, with_choices=with_choices, build=self._build)}

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
            return ask(_engine(os.getpid()), case)
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


@cache
def _engine(process: int) -> Engine:
    """Return the engine of this process, whose server stays until the process ends; one that is forked has its own."""
    engine = Local(rehearses=True, measures=False).__enter__()
    atexit.register(engine.__exit__)
    return engine


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
            if type(obj) not in (torch.Tensor, nn.Parameter) or obj.layout is not torch.strided:
                raise pickle.PicklingError(f"a {type(obj).__name__} of layout {obj.layout}")
            storage = obj.untyped_storage()
            shared = self._storages.setdefault(storage._cdata, user.Storage(storage.nbytes()))
            place = tuple(obj.shape), obj.stride(), obj.storage_offset()
            is_parameter = isinstance(obj, nn.Parameter)
            made = shared, obj.dtype, *place, obj.requires_grad, is_parameter, _values(obj)
            state = dict(vars(obj)), [*(obj._backward_hooks or {}).values()], [*hooks_of(obj).values()]
            return (user.tensor, made, state, None, None, user.set_state) if any(state) else (user.tensor, made)
        if isinstance(obj, torch.Generator) and obj.device.type == "cpu":
            return user.generator, (obj.get_state(),)
        return super().reducer_override(obj)


def _values(tensor: torch.Tensor) -> bytes | None:
    """Return the values of a tensor that code may read: small ones and masks; None for weights and large data."""
    most = MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE
    if tensor.requires_grad or tensor.is_meta or tensor.is_complex() or not 0 < tensor.numel() <= MOST_WHOLE:
        return None
    with torch.no_grad():
        if tensor.numel() > most and not bool(((tensor == 0) | (tensor == 1)).all()):
            return None
        return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
