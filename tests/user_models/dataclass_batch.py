"""A regression whose batch is a dataclass."""

from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Batch:
    features: torch.Tensor
    mask: torch.Tensor
    target: torch.Tensor


class Regressor(nn.Module):
    def __init__(self, width=32, depth=6):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, batch):
        x = self.embed(batch.features * batch.mask)
        return self.out(self.layers(x)).squeeze(-1)


def make(batch_size=16, width=32):
    torch.manual_seed(0)
    features = torch.randn(batch_size, 8)
    batch = Batch(features, (torch.rand(batch_size, 8) > 0.1).float(), features.sum(1))
    return Regressor(width), batch, lambda output, batch: ((output - batch.target) ** 2).mean()
