"""Blocks that draw a number from elsewhere than torch's default generator, and multiply by it: a recompute draws anew."""

import os
import random

import numpy as np
import torch
from torch import nn

OF_THE_FILE = np.random.default_rng()


class Scaled(nn.Module):
    def __init__(self, source: str = "none") -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.numpy = np.random.default_rng()
        self.source = source

    def drawn(self) -> float:
        draws = {
            "random": random.random,
            "file": OF_THE_FILE.random,
            "own-numpy": self.numpy.random,
            "system": lambda: os.urandom(1)[0] / 256,
            "none": lambda: 0.5,
        }
        return draws[self.source]()

    def forward(self, x):
        return torch.tanh(self.layer(x)) * torch.full((), 0.5 + self.drawn())


def make(source: str = "none", batch_size: int = 4):
    blocks = (Scaled(source) for _ in range(3))
    return nn.Sequential(*blocks), torch.randn(batch_size, 8), lambda out: out.square().mean()


class Jittered(Scaled):
    """A little more or less, whenever it runs."""

    def forward(self, x):
        return torch.tanh(self.layer(x) * (1 + 2e-4 * random.random()))


class Skipping(Scaled):
    """Nothing, at times."""

    def forward(self, x):
        return x if torch.rand(()) < 0.5 else torch.tanh(self.layer(x))


class Clipping(torch.optim.SGD):
    """Writes into the gradients that it takes, as those do that clip them."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.9999)
        return super().step(closure)


def once_more(kind: str = "plain", batch_size: int = 256):
    blocks = (Skipping() if kind == "skipping" else Jittered() for _ in range(6))
    model = nn.Sequential(*blocks, nn.Linear(8, 1))
    made = model, torch.randn(batch_size, 8), lambda out: out.mean()
    return (*made, Clipping(model.parameters(), lr=0.1)) if kind == "scaled" else made
