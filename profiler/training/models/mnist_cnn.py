"""The deep MNIST network of the published sweep: knows nothing of strategies."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.training.models.mnist import read_batch
from profiler.training.workload import Workload


class MnistCnn(nn.Module):
    """A trunk of convolutions that is one long chain, and two linear layers."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        trunk: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=2)]
        for _ in range(layers):
            trunk += [nn.Conv2d(channels, channels, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2, 2)]
        self.trunk = nn.Sequential(*trunk)
        self.head = nn.Sequential(nn.Linear(4 * channels, 10), nn.Linear(10, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.trunk(images)  # (batch, 1, 28, 28) -> (batch, channels, 2, 2)
        logits: torch.Tensor = self.head(features.flatten(1))  # (batch, 10)
        return logits


def build(
    batch_size: int = 64, data_directory: str | None = None, *, channels: Count = 320, layers: Count = 100
) -> Workload:
    """A very deep CNN on MNIST: `layers` times convolution, ReLU and pooling (301 modules at 100 layers).

    With fewer than 5 layers the trunk does not shrink to the 2 x 2 that the head expects: Unsupported.
    """
    if layers < 5:
        raise Unsupported(f"mnist-cnn needs at least 5 layers to shrink 28 x 28 to 2 x 2, not {layers}")
    images, labels, data = read_batch(batch_size, data_directory)
    module = MnistCnn(channels, layers)
    blocks = tuple(f"trunk.{i}" for i in range(len(module.trunk)))
    return Workload(module=module, blocks=blocks, batch=(images, labels), loss=_loss, data=data)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(module(images), labels)
