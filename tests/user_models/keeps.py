"""Blocks that keep something in plain Python from call to call, which a recompute moves once more."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.layer(x))


class Fading(Block):
    """Full strength in its first two calls, 0.4 of it afterwards."""

    def forward(self, x):
        return super().forward(x) * (1.0 if self.calls < 3 else 0.4)


class Averaging(Block):
    """Divides by the mean of what it has seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(self.layer.weight.detach().abs().mean())
        return torch.tanh(self.layer(x)) / torch.stack(self.seen).mean()


class Caching(Block):
    """Keeps the scale of its first call, and that of its third."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = None

    def forward(self, x):
        self.calls += 1
        if self.calls in (1, 3):
            self.scale = self.layer.weight.detach().abs().mean()
        return torch.tanh(self.layer(x)) / self.scale


def _chain(kind, batch_size):
    return nn.Sequential(*(kind() for _ in range(3))), torch.randn(batch_size, 8), lambda out: out.square().sum()


def counting(batch_size: int = 4):
    return _chain(Block, batch_size)


def fading(batch_size: int = 4):
    return _chain(Fading, batch_size)


def averaging(batch_size: int = 4):
    return _chain(Averaging, batch_size)


def caching(batch_size: int = 4):
    return _chain(Caching, batch_size)
