"""A model whose memory is in a trunk that is no stack: the blocks that are found are those of its neck."""

import torch
from torch import nn


class Trunk(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.trunk = Trunk(dim, hidden)
        self.neck = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(3)))

    def forward(self, x):
        return self.neck(self.trunk(x)).sum()


def wide(rows=64, dim=16, hidden=256):
    return Model(dim, hidden), torch.randn(rows, dim)


def narrow():
    return wide(hidden=8)
