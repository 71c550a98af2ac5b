"""Post-accumulate-gradient hooks: optimizers that step during the backward (LOMO and similar).

Such a hook steps its parameter and frees the gradient, so the gradients never all exist at once. Source: PyTorch's
tutorial "How to save memory by fusing the optimizer step into the backward pass".
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

IN_BACKWARD = "_in_backward_optimizers"  # attribute of a parameter, set by torch.distributed.optim


def hooks_of(parameter: torch.Tensor) -> dict[int, Callable[..., Any]]:
    """Return PyTorch's own dict of the parameter's post-accumulate-gradient hooks; an empty one if it has none."""
    hooks: dict[int, Callable[..., Any]] | None = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def held_by_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return what the hooks of the optimizer's parameters reference; a hook that several parameters share counts once.

    These are closures, bound objects, arguments and globals, and optimizers that torch.distributed.optim attached.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    hooks = {id(hook): hook for parameter in parameters for hook in hooks_of(parameter).values()}
    held = [value for hook in hooks.values() for value in held_by(hook)]
    return held + [value for parameter in parameters for value in getattr(parameter, IN_BACKWARD, ())]


def held_by(hook: Any) -> list[Any]:
    """Return the objects that a callable references, among which may be the optimizer that it steps."""
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
        cell.cell_contents  # noqa: B018  an empty cell raises
    except ValueError:
        return False
    return True


@contextmanager
def put_back(parameters: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Restore, on exit, the gradients that hooks dropped inside the context; yields the list of their parameters.

    The list is filled on exit. The gradients of several micro-batches are summed.
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
    """Remove the hooks of parameters that have outlived their model.

    A hook that references its parameter forms a cycle through PyTorch's internals, which the garbage collector cannot
    see.
    """
    for reference in parameters:
        if (parameter := reference()) is not None:
            hooks_of(parameter).clear()
