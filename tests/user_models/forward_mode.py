"""A directional derivative in the forward: the tangents of the weights, which are not moved, are zero."""

import torch
from torch import nn
from torch.autograd import forward_ad


class Directional(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        with forward_ad.dual_level():
            y = forward_ad.make_dual(x, torch.ones_like(x))
            for layer in self.layers:
                y = layer(y)
            value, tangent = forward_ad.unpack_dual(y)
            return value.square().mean() + tangent.square().mean()


def make(batch_size: int = 64, width: int = 32, depth: int = 2):
    return Directional(width, depth), torch.randn(batch_size, width), lambda out: out
