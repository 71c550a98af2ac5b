"""Checks what a caller of Python gives, as the command line does: settings, and a model.

A model is a factory, a word as on the command line, or a live module with a batch.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from profiler.core import own_thread
from profiler.core.case import Case, Choice, split_choices
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.gpu_specs import FAKE
from profiler.core.plan_file import PlanFile
from profiler.predicting.fake_tensors import DEEPCOPY
from profiler.request import spec
from profiler.request.spec import Request
from profiler.training import kept_state
from profiler.training.assemble import Build
from profiler.training.models.user import BY_FACTORY, as_workload, refuse_other_arguments
from profiler.training.workload import Workload

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
    """Return a function that makes fake tensors of real ones: shapes, types, strides and shared storages are theirs.

    Small ones without a gradient keep their values, such as sizes and rates, which a traced forward can read.
    """
    storages: dict[int, torch.Tensor] = {}

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        storage, is_parameter = tensor.untyped_storage(), isinstance(tensor, nn.Parameter)
        key, size = storage._cdata, storage.nbytes() // tensor.element_size()
        if key not in storages and size == tensor.numel() and tensor.is_contiguous():
            if tensor.requires_grad or is_parameter or size > KNOWN:
                made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            else:
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
