"""Models of wide parts: one layer, recomputed whole, or a trunk that is no stack beside a neck whose parts are blocks."""

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Parts(nn.Module):
    """Runs its parts in turn."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x


def one(rows=4096, dim=16, hidden=256):
    layer = Parts(attention=Wide(dim, hidden), mlp=Wide(dim, hidden))
    return Parts(layer=layer), torch.randn(rows, dim), lambda out: out.sum()


def wide(rows=64, dim=16, hidden=256):
    neck = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(3)))
    return Parts(trunk=Wide(dim, hidden), neck=neck), torch.randn(rows, dim), lambda out: out.sum()


def narrow():
    return wide(hidden=8)
