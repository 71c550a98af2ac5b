"""Blocks that PyTorch checkpoints and shards by hand, and the same model for gcprof."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=256, how="plain"):
        super().__init__()
        self.how = how
        self.blocks = nn.ModuleList(Block(width) for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.how == "called" else block(x)
        return x


def make(batch_size: int = 16):
    return Net(), torch.randn(batch_size, 256), lambda output: output.square().mean()


def peak_by_hand(how: str, ranks: int, batch_size: int = 16) -> int:
    """The peak of the third step of rank 0, in bytes, on a CUDA device."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cuda", (ranks,))
    with torch.device("cuda"):
        net = Net(how=how)
        x = torch.randn(batch_size, 256)
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()
