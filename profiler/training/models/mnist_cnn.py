"""The deep MNIST network of the published sweep, and a batch of MNIST, real if its files are given."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
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
    """A very deep CNN on MNIST: `layers` times convolution, ReLU and pooling (301 blocks at 100 layers).

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


def read_batch(batch_size: int, data_directory: str | None) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return images (batch, 1, 28, 28) in 0..1, labels (batch,), and "mnist" or "synthetic".

    `data_directory` holds the IDX files, or is torchvision's root with the files in MNIST/raw below it. Raises
    Unsupported if they are missing, or hold fewer than `batch_size` images. Nothing is ever downloaded.
    """
    if data_directory is None:
        return torch.rand(batch_size, 1, 28, 28), torch.randint(10, (batch_size,)), "synthetic"
    root = Path(data_directory)
    below = root / "MNIST" / "raw"
    from torchvision.datasets import MNIST  # noqa: PLC0415  takes a second to import, which only this needs

    class Files(MNIST):  # type: ignore[misc]  # torchvision has no annotations
        @property
        def raw_folder(self) -> str:
            return str(below if below.is_dir() else root)

    try:
        dataset = Files(data_directory, train=True, download=False)
    except RuntimeError as error:
        files = "train-images-idx3-ubyte and so on"  # the folder's name would go into the record
        raise Unsupported(f"no MNIST files ({files}) in the folder that --data names") from error
    if len(dataset) < batch_size:
        raise Unsupported(f"the MNIST files hold {len(dataset)} images, fewer than the batch of {batch_size}")
    images = dataset.data[:batch_size].unsqueeze(1).float() / 255
    return images, dataset.targets[:batch_size].clone(), "mnist"
