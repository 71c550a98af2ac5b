"""Two views of a batch go through the same blocks, so that each of them runs twice; a critic has spectral norm."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


class Siamese(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)
        )

    def encode(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, first, second):
        return nn.functional.mse_loss(self.encode(first), self.encode(second))


def twins(batch_size=8, width=16):
    return Siamese(width), (torch.randn(batch_size, width), 3 * torch.randn(batch_size, width))


def critic(batch_size=8, width=16):
    blocks = [nn.Sequential(spectral_norm(nn.Linear(width, width)), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*blocks), torch.randn(batch_size, width), lambda output: output.square().mean()
