"""Optimizers of torch.optim, what a user's optimizer wraps, and optimizers that hooks step in the backward."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from profiler.core.errors import Unsupported, similar
from profiler.training.kept_state import contents
from profiler.training.workload import tensors

IN_BACKWARD = "_in_backward_optimizers"  # attribute of a parameter, set by torch.distributed.optim


def sgd(parameters: Iterable[nn.Parameter], *, lr: float = 0.01) -> torch.optim.Optimizer:
    """Stochastic gradient descent: no state."""
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters: Iterable[nn.Parameter], *, lr: float = 0.01, momentum: float = 0.9) -> torch.optim.Optimizer:
    """SGD with momentum: one tensor of state for each parameter."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(parameters: Iterable[nn.Parameter], *, lr: float = 0.001) -> torch.optim.Optimizer:
    """Adam: two tensors of state for each parameter."""
    return torch.optim.Adam(parameters, lr=lr)


def adamw(parameters: Iterable[nn.Parameter], *, lr: float = 0.001) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay: two tensors of state for each parameter."""
    return torch.optim.AdamW(parameters, lr=lr)


def build(parameters: Iterable[nn.Parameter], name: str, **options: Any) -> torch.optim.Optimizer:
    """Any optimizer of torch.optim by its class's name, with its own options: `torch:RAdam:lr=0.01`.

    Raises Unsupported for a name that torch.optim does not have, naming the nearest, or options that it does not take.
    """
    classes = {attribute: kind for attribute, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind = classes.get(name)
    if kind is None or not issubclass(kind, torch.optim.Optimizer):
        near = similar(name, classes)
        raise Unsupported(f"torch.optim has no '{name}'" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        made: torch.optim.Optimizer = kind(parameters, **options)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"torch.optim.{name}: {error}") from error
    return made


def wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizer and those that it references in attributes, lists, tuples and dicts at any depth, once each.

    Optimizers that hooks of its parameters reference are included. Examples: Muon for matrices with AdamW for the rest,
    Lookahead, and one optimizer per parameter that steps as soon as the gradient arrives.
    """
    found: dict[int, Any] = {}
    pending = deque([optimizer, *held_by_hooks(optimizer)])
    while pending:
        part = pending.popleft()
        if not isinstance(part, (torch.optim.Optimizer, list, tuple, dict)) or id(part) in found:
            continue
        found[id(part)] = part
        inner = _own_attributes(part) if isinstance(part, torch.optim.Optimizer) else part
        pending += inner.values() if isinstance(inner, dict) else inner
    return [part for part in found.values() if isinstance(part, torch.optim.Optimizer)]


def _own_attributes(part: torch.optim.Optimizer) -> list[Any]:
    """Return the values of an optimizer's attributes, except those that every optimizer has."""
    of_all = {"state", "param_groups", "defaults"}
    return [value for name, value in vars(part).items() if name not in of_all]


def own_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors in attributes of these optimizers, outside of any state: Lookahead's slow weights."""
    return tensors([_own_attributes(part) for part in wrapped(optimizer)])


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Yield each parameter that has state with that state, once for each optimizer that keeps some."""
    for part in wrapped(optimizer):
        yield from part.state.items()


def state_by_parameter(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[Mapping[str, Any]]]:
    """Return the states of each parameter that has any, one for each optimizer that keeps some."""
    kept: dict[torch.Tensor, list[Mapping[str, Any]]] = {}
    for parameter, state in states(optimizer):
        kept.setdefault(parameter, []).append(dict(state))
    return kept


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
    cells = [held for cell in hook.__closure__ or () for held in contents(cell)]
    named = [hook.__globals__[name] for name in hook.__code__.co_names if name in hook.__globals__]
    return [*cells, *named, *(hook.__defaults__ or ())]


def _attributes(of: Any) -> list[Any]:
    return [of, *vars(of).values()] if hasattr(of, "__dict__") and not isinstance(of, nn.Module) else [of]


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
    with ExitStack() as watching:
        for name, parameter in hooked.items():
            watching.enter_context(parameter.register_hook(partial(keep, name)))
        yield dropped
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
