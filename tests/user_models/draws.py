"""Blocks that draw a number from elsewhere than torch's default generator, and multiply by it: a recompute draws anew."""

import os
import random

import numpy as np
import torch
from torch import nn

OF_THE_FILE = np.random.default_rng()


class Scaled(nn.Module):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.numpy = np.random.default_rng()
        self.source = source

    def drawn(self) -> float:
        draws = {
            "random": random.random,
            "numpy": np.random.rand,
            "file": OF_THE_FILE.random,
            "own-numpy": self.numpy.random,
            "system": lambda: os.urandom(1)[0] / 256,
            "none": lambda: 0.5,
        }
        return draws[self.source]()

    def forward(self, x):
        return torch.tanh(self.layer(x)) * torch.full((), 0.5 + self.drawn())


def make(source: str = "none", batch_size: int = 4):
    return (
        nn.Sequential(*[Scaled(source) for _ in range(3)]),
        torch.randn(batch_size, 8),
        lambda out: out.square().mean(),
    )
