"""Blocks that run in another order than that of their names."""

import torch
from torch import nn


class Turned(nn.Module):
    def __init__(self, width=16, depth=4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)])

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


def make(batch_size=2, width=16):
    return Turned(width), (torch.rand(batch_size, width), torch.rand(batch_size, width)), nn.MSELoss()
