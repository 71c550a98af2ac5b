"""Loops without modules, whose function is marked: parameters as arguments, or an index."""

from contextlib import nullcontext

import torch
from torch import nn

import profiler


def layer(x, weight):
    return torch.tanh(x @ weight)


marked = profiler.block(layer)


class Loop(nn.Module):
    """`anew`: a function of each forward, which captures another tensor each time."""

    is_short = False  # runs one call fewer

    def __init__(self, kind, layers, dim):
        super().__init__()
        self.kind = kind
        self.weights = nn.ParameterList(torch.randn(dim, dim) / 8 for _ in range(layers))

    @profiler.block
    def step(self, x, number):
        return nn.functional.dropout(torch.tanh(x @ self.weights[number]), 0.1, self.training)

    def forward(self, x):
        with profiler.block(layer) if self.kind == "context" else nullcontext(marked) as run:
            if self.kind == "anew":
                scale = x.abs().mean()
                run = profiler.block(lambda x, weight: torch.tanh(x @ weight * scale))
            for number in range(len(self.weights) - self.is_short):
                x = self.step(x, number) if self.kind == "methods" else run(x, self.weights[number])
        return x.square().mean()


def make(kind="loop", layers=6, dim=32, rows=2048):
    return Loop(kind, layers, dim), torch.randn(rows, dim)
