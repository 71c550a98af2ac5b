"""What a forward changes of what its recompute reads: switches of gradients, buffers, inputs, attributes, names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from profiler.core.units import few
from profiler.core.user_code import is_theirs
from profiler.training import plain_state, random_sources
from profiler.training.checkpointing.routed_block import own_class
from profiler.training.workload import Workload, loss_of

SWITCH = "requires_grad of "
MOST_NAMED = 3
DEEPEST = 4  # objects within objects
BUFFER = "the buffer "
TURNED = (
    "no longer as a checkpointed block found it in the forward, so that the recompute saves other tensors: change it "
    "after the backward, or checkpoint other blocks (--blocks)"
)
LENT = (
    "is called with tensors that stand in for its parameters, as torch.func.functional_call puts them there, and "
    "recomputed without them: mark the function that makes the call with profiler.block"
)


def what_moves(workload: Workload, model: nn.Module | None) -> str | None:
    """What a forward changes of what its recompute reads, in words; `model` is the one that failed."""
    frozen = _other_switches(workload.module, model) if model is not None else []
    before, states = _image(workload), random_sources.states(workload, next(workload.module.parameters()).device)
    with _watched(workload.module) as calls:
        loss_of(workload)
    after = _image(workload)
    moved = list(plain_state.moved(before, after))
    are_switches = any(name.startswith(SWITCH) for name in moved)
    if calls.lent:
        return f"'{calls.lent}' {LENT}"
    if not are_switches and (turned := calls.turned()):
        return f"{few(turned, MOST_NAMED)} is {TURNED}"
    if frozen and not are_switches:
        return f"{few(frozen, MOST_NAMED)} is no longer as built, perhaps changed between a forward and its recompute"
    if moved:
        is_sure = not all(name.startswith(BUFFER) and _kind(before, name) == _kind(after, name) for name in moved)
        unsure = "" if is_sure else ": perhaps the cause, where the code decides by its values"
        return f"the forward changes {few(moved, MOST_NAMED)}, which the recompute finds changed{unsure}"
    later = random_sources.states(workload, next(workload.module.parameters()).device)
    drawn = [name for name, state in states.items() if name != "torch" and not torch.equal(state, later[name])]
    return f"the recompute draws other numbers from {', '.join(drawn)}" if drawn else None


def _kind(image: plain_state.Image, name: str) -> str:
    """The shape and dtype of a tensor, without its values."""
    return image.get(name, "").rpartition(" ")[0]


class _Calls:
    """What the modules found of their parameters that a forward called under a checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        self.lent: str | None = None  # the first module that was called with parameters not its own
        self._names = {id(child): name for name, child in module.named_modules()}
        self._own = {id(child): {id(parameter) for parameter in child.parameters()} for child in module.modules()}
        self._parameters = {id(parameter): (name, parameter) for name, parameter in module.named_parameters()}
        self._seen: dict[int, set[bool]] = {}

    def called(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """A module is about to be called."""
        if id(module) not in self._names or not _is_under_checkpoint(sys._getframe()):
            return
        for parameter in module.parameters():
            if id(parameter) in self._own[id(module)]:
                self._seen.setdefault(id(parameter), set()).add(parameter.requires_grad)
            else:
                self.lent = self.lent or self._names[id(module)]

    def turned(self) -> list[str]:
        """The switches for gradients that are no longer as a call found them."""
        pairs = [(self._parameters[key], found) for key, found in self._seen.items()]
        return [f"{SWITCH}{name}" for (name, parameter), found in pairs if found != {parameter.requires_grad}]


@contextmanager
def _watched(module: nn.Module) -> Iterator[_Calls]:
    """Follow the calls of modules while the block runs."""
    calls = _Calls(module)
    handle = register_module_forward_pre_hook(calls.called)
    try:
        yield calls
    finally:
        handle.remove()


def _is_under_checkpoint(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def _other_switches(fresh: nn.Module, model: nn.Module) -> list[str]:
    """The switches for gradients of parameters that are not as in a model that was just built."""
    before, now = _switches(fresh), _switches(model)
    return [name for name, is_on in before.items() if now.get(name, is_on) != is_on]


def _switches(module: nn.Module) -> dict[str, str]:
    """By parameter, whether it needs a gradient."""
    return {f"{SWITCH}{name}": str(parameter.requires_grad) for name, parameter in module.named_parameters()}


def _image(workload: Workload) -> plain_state.Image:
    """What a forward may change.

    requires_grad of parameters, buffers, inputs, plain attributes, objects of the model, names of its files.
    """
    module = workload.module
    held = {f"{BUFFER}{name}": _decisive(module, name, buffer) for name, buffer in module.named_buffers()}
    inputs, _ = pytree.tree_flatten_with_path(workload.batch)
    held |= {f"the input{pytree.keystr(path)}": leaf for path, leaf in inputs}
    held |= {f"{home}.{name}": value for home, names in _files(module) for name, value in names.items()}
    image = {name: text for name, value in held.items() if (text := plain_state.text(value)) is not None}
    for path, submodule in module.named_modules():
        image |= dict(_objects(vars(submodule), f"{path}." if path else "", DEEPEST))
    return _switches(module) | plain_state.image(module) | image


def _decisive(module: nn.Module, name: str, buffer: torch.Tensor) -> torch.Tensor | list[str]:
    """What of a buffer may decide which tensors are saved: of torch.nn's own modules' its shape and dtype alone."""
    owner = own_class(module.get_submodule(name.rpartition(".")[0]))
    return [str(buffer.shape), str(buffer.dtype)] if owner.__module__.startswith("torch.nn.") else buffer


def _objects(values: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """What the attributes of objects hold that are neither modules nor plain, by their full names."""
    for name, value in list(values.items()):
        is_plain = value is None or isinstance(value, plain_state.KINDS)
        if name in plain_state.OF_TORCH or is_plain or isinstance(value, (nn.Module, type)) or not depth:
            continue
        own = getattr(value, "__dict__", {})
        for attribute, held in list(own.items()):
            if (text := plain_state.text(held)) is not None:
                yield f"{prefix}{name}.{attribute}", text
        yield from _objects(own, f"{prefix}{name}.", depth - 1)


def _files(module: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    """The names of the user's files that the classes of the modules are of."""
    names = dict.fromkeys(type(submodule).__module__ for submodule in module.modules())
    homes = [sys.modules[name] for name in names if name in sys.modules]
    return [
        (home.__name__, {name: value for name, value in vars(home).items() if not name.startswith("__")})
        for home in homes
        if is_theirs(getattr(home, "__file__", None) or "<")
    ]
