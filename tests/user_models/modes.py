"""A model in train mode, or of which all or a part is in eval mode."""

import torch
from torch import nn


class Net(nn.Module):
    gradient_checkpointing = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def make(mode: str = "training", batch_size: int = 4):
    net = Net()
    if mode in ("partly", "frozen"):
        net.layers[1].eval().requires_grad_(mode != "frozen")
    if mode == "switched":
        net.eval().gradient_checkpointing = True
    return net, torch.randn(batch_size, 8), lambda out: out.sum()
