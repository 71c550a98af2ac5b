"""Small chains of blocks, called in the ways that models call them."""

import torch
from torch import nn

from profiler.training.workload import Workload


class Counted(nn.Module):
    """Counts its calls and saves its output."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return (self.linear(x) * scale).sin()


class Looping(nn.Module):
    """A list of blocks and a loop with an argument beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Counted() for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x


def workload(module: nn.Module, blocks: tuple[str, ...]) -> Workload:
    return Workload(module=module, blocks=blocks, batch=torch.ones(2, 3), loss=lambda module, x: module(x).sum())


class InTuples(nn.Module):
    """Blocks that return a tuple of one, as many models of Hugging Face do."""

    class Block(Counted):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (super().forward(x),)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.Block() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x
