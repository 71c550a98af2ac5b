"""A model beside an averaged copy of its layers, which no forward runs: frozen, or not."""

import copy

import torch
from torch import nn


class Averaged(nn.Module):
    def __init__(self, is_frozen: bool, is_run: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.average = copy.deepcopy(self.layers).requires_grad_(not is_frozen)
        self.is_run = is_run

    def forward(self, x):
        teacher = x
        with torch.no_grad():
            for own, other in zip(self.average.parameters(), self.layers.parameters(), strict=True):
                own.lerp_(other, 0.5)
            for layer in self.average if self.is_run else ():
                teacher = layer(teacher)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x - teacher).square().sum()


def make(batch_size: int = 4, is_frozen: bool = True, is_run: bool = False):
    return Averaged(is_frozen, is_run), torch.randn(batch_size, 8)
