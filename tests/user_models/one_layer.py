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


class Layer(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.attention = Wide(dim, hidden)
        self.mlp = Wide(dim, hidden)

    def forward(self, x):
        return self.mlp(self.attention(x))


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.layer = Layer(dim, hidden)

    def forward(self, x):
        return self.layer(x).sum()


def one(rows=4096, dim=16, hidden=256):
    return Model(dim, hidden), torch.randn(rows, dim)


class Necked(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.trunk = Wide(dim, hidden)
        self.neck = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(3)))

    def forward(self, x):
        return self.neck(self.trunk(x)).sum()


def wide(rows=64, dim=16, hidden=256):
    return Necked(dim, hidden), torch.randn(rows, dim)


def narrow():
    return wide(hidden=8)
