"""One batch of MNIST, real where its files are at hand: never a download, knows nothing of models."""

from __future__ import annotations

from pathlib import Path

import torch

from profiler.core.errors import Unsupported


def read_batch(batch_size: int, data_directory: str | None) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Images (batch, 1, 28, 28) in 0..1, labels (batch,), and "mnist" or "synthetic".

    `data_directory` holds the IDX files, or is torchvision's root with the files in MNIST/raw below it. Raises
    Unsupported where they are not there, or hold fewer than `batch_size` images.
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
        found = Files(data_directory, train=True, download=False)
    except RuntimeError as error:
        files = "train-images-idx3-ubyte and so on"  # and not the folder's name, which would go into the record
        raise Unsupported(f"no MNIST files ({files}) in the folder that --data names") from error
    if len(found) < batch_size:
        raise Unsupported(f"the MNIST files hold {len(found)} images, fewer than the batch of {batch_size}")
    images = found.data[:batch_size].unsqueeze(1).float() / 255
    return images, found.targets[:batch_size].clone(), "mnist"
