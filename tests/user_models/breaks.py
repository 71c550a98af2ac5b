"""A model whose own step fails: a product of shapes that do not fit, in a method that the forward calls."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        return self.mix(self.layers(x))

    def mix(self, x):
        return x @ torch.ones(3, 3)


def make(batch_size=4):
    return Net(), torch.randn(batch_size, 8), lambda output: output.sum()
