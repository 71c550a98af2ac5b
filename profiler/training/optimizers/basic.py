"""Optimizers of torch.optim by their usual names: knows nothing of models."""

from collections.abc import Iterable

import torch
from torch import nn


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
