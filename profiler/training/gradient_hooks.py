"""Hooks that take a parameter's gradient as it arrives: optimizers that step in the backward (LOMO and its kin).

Such a hook steps and drops the gradient, so that all of them are never there together. Source: PyTorch's tutorial
"How to save memory by fusing the optimizer step into the backward pass".
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

IN_BACKWARD = "_in_backward_optimizers"  # of a parameter, as torch.distributed.optim sets it


def hooks_of(parameter: torch.Tensor) -> dict[int, Callable[..., Any]]:
    """The hooks that run once a gradient has arrived, as PyTorch keeps them."""
    hooks: dict[int, Callable[..., Any]] | None = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def held_by_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What hooks of the optimizer's parameters hold: their closures, objects, arguments and globals, each once."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    hooks = {id(hook): hook for parameter in parameters for hook in hooks_of(parameter).values()}
    held = [value for hook in hooks.values() for value in held_by(hook)]
    return held + [value for parameter in parameters for value in getattr(parameter, IN_BACKWARD, ())]


def held_by(hook: Any) -> list[Any]:
    """What a callable holds and could step with."""
    if isinstance(hook, partial):
        return [*held_by(hook.func), *hook.args, *hook.keywords.values()]
    if isinstance(hook, MethodType):
        return [*held_by(hook.__func__), *_attributes(hook.__self__)]
    if not isinstance(hook, FunctionType):
        return _attributes(hook)
    cells = [cell.cell_contents for cell in hook.__closure__ or () if _is_filled(cell)]
    named = [hook.__globals__[name] for name in hook.__code__.co_names if name in hook.__globals__]
    return [*cells, *named, *(hook.__defaults__ or ())]


def _attributes(of: Any) -> list[Any]:
    return [of, *vars(of).values()] if hasattr(of, "__dict__") and not isinstance(of, nn.Module) else [of]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty one raises
    except ValueError:
        return False
    return True


@contextmanager
def put_back(parameters: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give parameters whose hooks drop the gradient what arrived while the block ran; tells which these are.

    It is of the whole backward: what several micro-batches bring is summed up.
    """
    arrived: dict[str, torch.Tensor] = {}
    dropped: list[torch.Tensor] = []

    def keep(name: str, gradient: torch.Tensor) -> None:
        arrived[name] = arrived[name] + gradient if name in arrived else gradient.detach().clone()

    hooked = {
        name: parameter
        for name, parameter in parameters.items()
        if hooks_of(parameter) or hasattr(parameter, IN_BACKWARD)
    }
    handles = [parameter.register_hook(partial(keep, name)) for name, parameter in hooked.items()]
    try:
        yield dropped
    finally:
        for handle in handles:
            handle.remove()
    for name, gradient in arrived.items():
        if hooked[name].grad is None:
            hooked[name].grad = gradient
            dropped.append(hooked[name])


def let_go(parameters: Iterable[weakref.ref[nn.Parameter]]) -> None:
    """Remove the hooks of parameters whose model is gone.

    A hook that holds its parameter is a cycle through PyTorch's own objects, which no collection of cycles sees.
    """
    for reference in parameters:
        if (parameter := reference()) is not None:
            hooks_of(parameter).clear()
