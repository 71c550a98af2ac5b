"""A convolutional net of 13 uneven stages, written as users write theirs: for `benchmarks.worth`."""

from __future__ import annotations

import torch
from torch import nn

WIDTHS = (32, 32, 0, 64, 64, 0, 128, 128, 128, 0, 256, 256)  # channels after each convolution; 0 halves the image


class Net(nn.Module):
    """Convolutions with ReLU and poolings, each a stage, and a last stage without a picture."""

    def __init__(self, size: int) -> None:
        super().__init__()
        before, stages = 3, []
        for width in WIDTHS:
            if width:
                stages.append(nn.Sequential(nn.Conv2d(before, width, 3, padding=1), nn.GELU()))
                before = width
            else:
                stages.append(nn.Sequential(nn.AvgPool2d(2), nn.Tanh()))
        self.stages = nn.ModuleList([*stages, nn.Sequential(nn.Conv2d(before, 16, 1), nn.Tanh())])
        self.head = nn.Linear(16 * (size // 8) ** 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for stage in self.stages:
            x = stage(x)
        logits: torch.Tensor = self.head(x.flatten(1))
        return logits


def images(batch_size: int = 8, size: int = 64) -> tuple[object, ...]:
    """The net, a batch with its labels, and the loss."""
    batch = torch.rand(batch_size, 3, size, size), torch.randint(10, (batch_size,))
    return Net(size), batch, nn.functional.cross_entropy
