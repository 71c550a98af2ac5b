"""A model of which one parameter has no part in the loss."""

import torch
from torch import nn


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.unused = nn.Linear(8, 8)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x.mean()


def make():
    return Partly(), torch.randn(4, 8)
