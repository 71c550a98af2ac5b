"""A chain with BatchNorm, whose running statistics are updated twice under recompute."""

import torch
from torch import nn

from profiler.training.workload import Workload


def build(batch_size: int = 8) -> Workload:
    """Linear and BatchNorm in turn."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8))]
    module = nn.Sequential(*layers)
    x = torch.randn(batch_size, 8)  # (batch, 8)
    return Workload(module=module, blocks=tuple(str(i) for i in range(len(layers))), batch=x, loss=_loss)


def _loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x).square().mean()
    return loss
