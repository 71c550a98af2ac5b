"""Small chains of blocks, called in the ways that models call them, and with layers that are easily read wrong."""

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


class Drawing(nn.Module):
    """Noise, with one draw more where it is compiled; its backward needs none of it: no budget can make that wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            torch.rand(1)
        return self.linear(x) + torch.rand_like(x)  # (batch, 8)


def drawing(batch_size: int = 8) -> Workload:
    return _squared([Drawing(), Drawing()], batch_size)


def batchnorm(batch_size: int = 8) -> Workload:
    """Linear and BatchNorm in turn, whose running statistics are updated twice under recompute."""
    return _squared([layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8))], batch_size)


def small_loss(batch_size: int = 8) -> Workload:
    """A loss so small that its gradients are zero in half precision, unless they are scaled."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())]
    return _squared(layers, batch_size, 1e-6)


def _squared(layers: list[nn.Module], batch_size: int, scale: float = 1.0) -> Workload:
    return Workload(
        module=nn.Sequential(*layers),
        blocks=tuple(map(str, range(len(layers)))),
        batch=torch.randn(batch_size, 8),
        loss=lambda module, x: scale * module(x).square().mean(),
    )
