"""A plain multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.training.workload import Workload


def build(
    batch_size: int = 64, *, width: Count = 20, depth: Count = 3, features: Count = 10, classes: Count = 5
) -> Workload:
    """Linear layers with ReLU between; 10-20-20-5 unless told otherwise."""
    sizes = [features, *[width] * (depth - 1), classes]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    x = torch.randn(batch_size, features)  # (batch, features)
    y = torch.randint(classes, (batch_size,))  # (batch,)
    return Workload(module=module, blocks=tuple(str(i) for i in range(len(module))), batch=(x, y), loss=_loss)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(module(x), y)
