"""Blocks that draw from Python's own generator, which checkpoints do not restore."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn


class Jittered(nn.Module):
    """A little more or less, whenever it runs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(values) * (1 + 2e-4 * random.random()))


class Skipping(Jittered):
    """Nothing, at times."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values if torch.rand(()) < 0.5 else torch.tanh(self.linear(values))


class Scaling(torch.optim.SGD):
    """Writes into the gradients that it takes, as those do that clip them."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.9999)
        return super().step(closure)


def mean(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return output.mean()


def make(kind: str = "plain", batch_size: int = 256, width: int = 64, depth: int = 6) -> Any:
    block = Skipping if kind == "skipping" else Jittered
    model = nn.Sequential(*(block(width) for _ in range(depth)), nn.Linear(width, 1))
    made = model, (torch.randn(batch_size, width),), mean
    return (*made, Scaling(model.parameters(), lr=0.1)) if kind == "scaled" else made
