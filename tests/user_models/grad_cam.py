"""A model that keeps an activation and its gradient until its next forward, as Grad-CAM does."""

import torch
from torch import nn


class Watched(nn.Module):
    def __init__(self, width: int, keeps: str) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)
        self.keeps = keeps
        self.gradient = None

    def forward(self, x):
        self.gradient = None  # what the last backward left goes here
        hidden = torch.relu(self.first(x))
        if self.keeps == "gradient":
            hidden.register_hook(self._keep)
        return self.last(hidden)

    def _keep(self, gradient):
        self.gradient = gradient


def make(batch_size: int = 64, width: int = 256, keeps: str = "gradient"):
    return Watched(width, keeps), torch.randn(batch_size, width), lambda out: out.sum()
