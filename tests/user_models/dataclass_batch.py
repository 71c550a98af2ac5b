"""A regression whose batch is a dataclass."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Inner:
    features: torch.Tensor
    name: str = "left"


@dataclass
class Pair:
    """Holds another dataclass, and a tensor that it works out itself."""

    left: Inner
    doubled: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.doubled = 2 * self.left.features
        self.halved = self.doubled / 4


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)])

    def forward(self, batch):
        return self.layers(batch.left.features + batch.doubled + batch.halved).square().mean()


def nested(batch_size=16):
    return Summing(), Pair(Inner(torch.randn(batch_size, 8)))
