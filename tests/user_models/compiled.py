"""Users' models that call torch.compile themselves, with and without checkpoints of their own in the compiled code."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, own):
        super().__init__()
        self.norm, self.own = nn.LayerNorm(width), own
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def inner(self, x):
        return self.down(nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.own else self.inner(x))


class Net(nn.Module):
    def __init__(self, width=64, depth=4, own=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, own) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


class Decorated(Net):
    @torch.compile(backend="aot_eager_decomp_partition")
    def forward(self, x):
        return super().forward(x)


def make(way: str = "module", backend: str = "inductor", own: bool = False, batch_size: int = 32):
    net = (Decorated if way == "decorated" else Net)(own=own)
    if way == "module":
        net.compile(backend=backend)
    if way == "wrapped":
        net = torch.compile(net, backend=backend)
    for block in net.blocks if way == "blocks" else ():
        block.compile(backend=backend)
    return net, torch.randn(batch_size, 64)
