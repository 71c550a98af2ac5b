"""A chain of dense layers of which every saved byte can be counted by hand."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.training.workload import Workload


class Dense(nn.Module):
    """A linear layer and tanh, whose backward needs only its output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))  # (batch, outputs)


def build(batch_size: int = 1, *, widths: str = "16+32", features: Count = 8) -> Workload:
    """Dense layers that save exactly their outputs, for arithmetic by hand: 16+32 is two, of widths 16 and 32.

    The linear part saves its input, which is the batch or the output of the layer before; tanh saves its own output;
    the sum that is the loss saves nothing. So a layer of width w saves 4 w bytes a sample in fp32: 16+32 at batch 1
    saves 64 + 128 = 192 bytes. The 4 bytes of the loss itself are live beside them, so that what the forward leaves
    live (`saved`) is 196. Raises Unsupported where the widths are no whole numbers from 1 joined by `+`.
    """
    words = widths.split("+")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise Unsupported(f"widths={widths} is not a list of whole numbers from 1, like 16+32")
    sizes = [features, *map(int, words)]
    module = nn.Sequential(*[Dense(inputs, outputs) for inputs, outputs in pairwise(sizes)])
    batch = torch.randn(batch_size, features)  # (batch, features)
    return Workload(module=module, blocks=tuple(str(i) for i in range(len(module))), batch=batch, loss=_loss)


def _loss(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = module(batch)
    return output.sum()
