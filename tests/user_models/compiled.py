"""Users' models that call torch.compile themselves, with and without checkpoints of their own in the compiled code."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, drop, own, breaks):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(drop)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.own, self.breaks = own, breaks

    def inner(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.own else self.inner(x))


class Net(nn.Module):
    def __init__(self, width=64, depth=4, drop=0.0, own=False, breaks=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, drop, own, breaks) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


class Decorated(Net):
    @torch.compile(backend="aot_eager_decomp_partition")
    def forward(self, x):
        return super().forward(x)


def make(way: str = "module", backend: str = "inductor", own: bool = False, breaks: bool = False, drop: float = 0.0,
         batch_size: int = 32):  # fmt: skip
    net = (Decorated if way == "decorated" else Net)(drop=drop, own=own, breaks=breaks)
    if way == "module":
        net.compile(backend=backend)
    if way == "wrapped":
        net = torch.compile(net, backend=backend)
    if way == "graphs":
        net.compile(mode="reduce-overhead")
    for block in net.blocks if way == "blocks" else ():
        block.compile(backend=backend)
    return net, torch.randn(batch_size, 64)
