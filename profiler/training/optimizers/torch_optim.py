"""Optimizers of torch.optim: the usual ones, and any by its class's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from profiler.core.errors import Unsupported, similar


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
