"""A deep chain of which little but the inputs of checkpoints is there; and the same with those on the host, by hand."""

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


class Chain(nn.Module):
    def __init__(self, depth, way):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(depth))
        self.way = way

    def forward(self, x):
        if self.way == "plain":
            return self.run(x, lambda block, x: block(x))
        with save_on_cpu():
            return self.run(x, lambda block, x: checkpoint(block, x, use_reentrant=False))

    def run(self, x, call):
        for block in self.blocks:
            x = call(block, x)
        return x.sum()


def make(batch_size=4096, depth=24, way="plain"):
    return Chain(depth, way), torch.randn(batch_size, 64)
