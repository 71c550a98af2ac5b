"""A chain with noise that draws one number more where it is compiled."""

import torch
from torch import nn

from profiler.training.workload import Workload


class Drawing(nn.Module):
    """Nothing of the noise is needed in its backward, so no budget can make that wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            torch.rand(1)
        return self.linear(x) + torch.rand_like(x)  # (batch, 8)


def build(batch_size: int = 8) -> Workload:
    """Two blocks with noise."""
    module = nn.Sequential(Drawing(), Drawing())
    return Workload(module=module, blocks=("0", "1"), batch=torch.randn(batch_size, 8), loss=_loss)


def _loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x).square().mean()
    return loss
