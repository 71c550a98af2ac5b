"""The simplest published system, SimpleMLP, as its readers would write it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from profiler.training.workload import Workload


class SimpleMLP(nn.Module):
    """10-20-20-5: two blocks of a linear layer and ReLU, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(10, 20), nn.ReLU())
        self.block2 = nn.Sequential(nn.Linear(20, 20), nn.ReLU())
        self.output = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block2(self.block1(x))  # (batch, 10) -> (batch, 20)
        logits: torch.Tensor = self.output(x)  # (batch, 5)
        return logits


def build(batch_size: int = 64) -> Workload:
    """The three-layer perceptron 10-20-20-5, whose second block is the one to checkpoint."""
    batch = (torch.randn(batch_size, 10), torch.randint(5, (batch_size,)))  # (batch, 10), (batch,)
    return Workload(module=SimpleMLP(), blocks=("block1", "block2", "output"), batch=batch, loss=_loss)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(module(x), y)
