"""Blocks with squeeze-and-excitation, which write over a convolution's result in place."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze = nn.Conv2d(channels, channels // 2, 1)
        self.excite = nn.Conv2d(channels // 2, channels, 1)

    def forward(self, x):
        y = self.conv(x)
        scale = functional.silu(self.squeeze(y.mean((2, 3), keepdim=True)), inplace=True)
        return x + y * torch.sigmoid(self.excite(scale))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block(8) for _ in range(4)))

    def forward(self, x):
        return self.layers(x).mean()


def make(batch_size: int = 4):
    return Net(), torch.randn(batch_size, 8, 16, 16)
