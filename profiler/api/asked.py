"""What a caller of Python asks for, checked as the command line does, in words of Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor

from profiler.api.given_model import Model, factory, name_of
from profiler.core import catalogue
from profiler.core.case import FAKE, Case, Choice, split_choices
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.request import device_choice, spec
from profiler.request.spec import Request
from profiler.training import optimizers, random_sources
from profiler.training.assemble import Build
from profiler.training.models.user import as_workload
from profiler.training.workload import Workload

HINT = "build returns (module, batch), (module, batch, loss), ...; a module is given with batch= and loss="


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Errors name keywords instead of options: `device` for `--device`. A step that trains nothing is a UserError."""
    try:
        yield
    except UserError as error:
        hint = None if error.hint is None else _python(error.hint)
        raise UserError(_python(error.message), hint=hint, exit_code=error.exit_code) from error
    except Unsupported as error:
        raise Unsupported(_python(str(error))) from error
    except Invalid as error:
        raise UserError(str(error), hint=HINT) from error


def _python(text: str) -> str:
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda option: option[1].replace("-", "_"), text).replace(FAKE, "")


def predicted(
    model: Model, batch: Any, loss: Any, optimizer: str, *, device: str, **words: Any
) -> tuple[Case, Build | None]:
    """The case of a prediction, without its strategy, and what makes its workload anew; None for a word.

    That raises UserError for a module with tensors from before.
    """
    request = Request(device=device_choice.to_predict(device or "cuda"), **words)
    case = case_of(model, request, optimizer, device_choice.any_device)
    return case, _fresh_workload(factory(model, batch, loss))


def _fresh_workload(build: Callable[[], Any] | None) -> Build | None:
    if build is None:
        return None

    def made() -> Workload:
        workload = as_workload(build())
        if any(not isinstance(parameter, FakeTensor) for parameter in workload.module.parameters()):
            hint = "make it inside build, which is called anew for every trace: def build(): module = MyModel(); ..."
            raise UserError("build returned a module that was made before: tracing would change it", hint=hint)
        return workload

    return made


def case_of(model: Model, words: Request, optimizer: str, choose_device: Callable[[str], str]) -> Case:
    """The one case of what was asked for, checked as the command line does, without its strategy."""
    word = model if isinstance(model, str) else None
    for name, value in (("precision", words.precision), ("device", words.device), ("model", word)):
        if value and len(split_choices(value)) > 1:
            raise UserError(f"{name}: '{value}' is more than one", hint="ask for each by itself")
    request = msgspec.structs.replace(words, model=word or "mlp", strategies="none")
    (checked, *_) = spec.check(request, choose_device).trials
    case = msgspec.structs.replace(
        checked.case, optimizer=catalogue.resolve(Choice(optimizer), optimizers.TABLE, what="optimizer")
    )
    return case if word else msgspec.structs.replace(case, model=Choice(name_of(model)), batch_size=None)


@contextmanager
def own_random_state() -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices), random_sources.kept():
        yield
