"""A model whose own checkpoints lie within its blocks, and are finer than any plan of whole blocks."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Part(nn.Sequential):
    """Keeps its input, and twice eight times as much within."""

    def __init__(self, width):
        wide = 8 * width
        super().__init__(nn.Linear(width, wide, bias=False), nn.Tanh(), nn.Linear(wide, width, bias=False))


class Block(nn.Module):
    def __init__(self, width, parts, own):
        super().__init__()
        self.parts = nn.ModuleList(Part(width) for _ in range(parts))
        self.own = own

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.own else part(x)
        return x


class Deep(nn.Module):
    def __init__(self, width, depth, parts, own):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, parts, own) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def make(batch_size=64, width=16, depth=3, parts=12, own=True):
    return Deep(width, depth, parts, own), torch.randn(batch_size, width)
