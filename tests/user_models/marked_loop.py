"""Loops without modules, whose function is marked: parameters as arguments, or an index."""

import torch
from torch import nn

import profiler


@profiler.block
def layer(x, weight):
    return torch.tanh(x @ weight)


def plain(x, weight):
    return torch.tanh(x @ weight)


class Loop(nn.Module):
    def __init__(self, layers, dim):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(dim, dim) / 8) for _ in range(layers)])

    def forward(self, x):
        for weight in self.weights:
            x = layer(x, weight)
        return x.square().mean()


class Methods(Loop):
    @profiler.block
    def step(self, x, number):
        return nn.functional.dropout(torch.tanh(x @ self.weights[number]), 0.1, self.training)

    def forward(self, x):
        for number in range(len(self.weights)):
            x = self.step(x, number)
        return x.square().mean()


class Context(Loop):
    def forward(self, x):
        with profiler.block(plain) as run:
            for weight in self.weights:
                x = run(x, weight)
        return x.square().mean()


class Anew(Loop):
    """A function made in each forward: what it captures is another tensor each time."""

    def forward(self, x):
        scale = x.abs().mean()
        run = profiler.block(lambda x, weight: torch.tanh(x @ weight * scale))
        for weight in self.weights:
            x = run(x, weight)
        return x.square().mean()


class Sliced(nn.Module):
    """Weights in one tensor: each slice is a new one."""

    def __init__(self, layers, dim):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(layers, dim, dim) / 8)

    def forward(self, x):
        for number in range(len(self.weights)):
            x = layer(x, self.weights[number])
        return x.square().mean()


class Moody(Loop):
    """Runs one call fewer where its switch is on."""

    is_short = False

    def forward(self, x):
        for weight in self.weights[: -1 if self.is_short else None]:
            x = layer(x, weight)
        return x.square().mean()


KINDS = {"loop": Loop, "methods": Methods, "context": Context, "anew": Anew, "sliced": Sliced, "moody": Moody}


def make(kind="loop", layers=6, dim=32, rows=2048):
    return KINDS[kind](layers, dim), torch.randn(rows, dim)
