"""A chain with dropout and a loss so small that its gradients are zero in half precision, unless they are scaled."""

import torch
from torch import nn

from profiler.training.workload import Workload


def build(batch_size: int = 8, *, scale: float = 1e-6) -> Workload:
    """Linear, dropout and tanh in turn."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())]
    module = nn.Sequential(*layers)
    x = torch.randn(batch_size, 8)  # (batch, 8)
    blocks = tuple(str(index) for index in range(len(layers)))
    return Workload(module=module, blocks=blocks, batch=x, loss=lambda module, x: scale * module(x).square().mean())
