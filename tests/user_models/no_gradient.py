"""A model with parameters that get no gradient for three reasons, and a backward that is warned about."""

import warnings

import torch
from torch import nn


class Lossy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.detached = nn.Linear(8, 8)
        self.off = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            x = x + self.off(x)
        x = self.body(self.frozen(x))
        return (x + self.detached(x).detach()).square().mean()


def make(batch_size: int = 4):
    return Lossy(), torch.randn(batch_size, 8)


class Warned(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.count = count

    def forward(self, x):
        warnings.warn("this will go away", DeprecationWarning, stacklevel=1)
        warnings.warn("this will change", FutureWarning, stacklevel=1)
        for number in range(self.count):
            warnings.warn(f"trouble {number}\nand more of it", RuntimeWarning, stacklevel=1)
            warnings.warn(f"trouble {number}\nand other words", UserWarning, stacklevel=1)
        return nn.functional.mse_loss(self.body(x), torch.zeros(8))


def warned(count: int = 0, batch_size: int = 4):
    return Warned(count), torch.randn(batch_size, 8)
