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


class InTuple(Counted):
    """Returns a tuple of one, as many models of Hugging Face do."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor]:
        return (super().forward(x, scale),)


class Looping(nn.Module):
    """A list of blocks and a loop with an argument beside the activation."""

    def __init__(self, block: type[Counted] = Counted) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block() for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            out = layer(x, scale=0.5)
            x = out[0] if isinstance(out, tuple) else out
        return x


def workload(module: nn.Module, blocks: tuple[str, ...]) -> Workload:
    return Workload(module=module, blocks=blocks, batch=torch.ones(2, 3), loss=lambda module, x: module(x).sum())
