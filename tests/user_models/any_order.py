"""Messages are added in an order that no seed fixes, as by kernels of a GPU: what is 0 but for rounding is noise."""

import os

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(width, width)  # its bias has no effect behind the BatchNorm
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        order = torch.tensor(sorted(range(len(x)), key=lambda _: os.urandom(8)), device=x.device)
        return self.norm(self.hidden(x)[order])[order.argsort()].relu()


def make(batch_size=64, width=16):
    model = nn.Sequential(*(Layer(width) for _ in range(3)), nn.Linear(width, 1))
    return model, torch.randn(batch_size, width), lambda output: 100 * output.square().mean()
