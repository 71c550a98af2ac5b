"""A model with parameters that get no gradient for three reasons."""

import torch
from torch import nn


class Lossy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.detached = nn.Linear(8, 8)
        self.off = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            x = x + self.off(x)
        x = self.body(self.frozen(x))
        return (x + self.detached(x).detach()).square().mean()


def make(batch_size: int = 4):
    return Lossy(), torch.randn(batch_size, 8)
