"""Factories that return a model, or a part of it, in eval mode; and one whose options have names of gcprof's own."""

import torch
from torch import nn


class Net(nn.Module):
    gradient_checkpointing = False

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def training(batch_size: int = 4):
    return Net(), torch.randn(batch_size, 8), lambda out: out.sum()


def partly(batch_size: int = 4):
    net = Net()
    net.layers[1].eval()
    return net, torch.randn(batch_size, 8), lambda out: out.sum()


def frozen(batch_size: int = 4):
    net = Net()
    net.layers[1].eval().requires_grad_(False)
    return net, torch.randn(batch_size, 8), lambda out: out.sum()


def switched(batch_size: int = 4):
    net = Net().eval()
    net.gradient_checkpointing = True
    return net, torch.randn(batch_size, 8), lambda out: out.sum()
