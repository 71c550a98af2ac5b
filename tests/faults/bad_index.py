"""A model that looks up a row that is not there: an IndexError on a CPU, an assert that breaks the process on a GPU."""

import torch
from torch import nn

from profiler.training.workload import Workload

ROWS, WIDTH = 16, 8


def build(batch_size: int = 4) -> Workload:
    """An embedding and a layer; every index is the first that is too large."""
    module = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, WIDTH))
    batch = torch.full((batch_size,), ROWS)  # (batch,)
    return Workload(module=module, blocks=("0", "1"), batch=batch, loss=_loss)


def _loss(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(batch).square().mean()
    return loss
