"""Users' models that call torch.utils.checkpoint themselves, in every way in which it can be imported."""

import functools

import torch
import torch.utils.checkpoint as c
from torch import nn
from torch.utils.checkpoint import checkpoint as ck
from torch.utils.checkpoint import checkpoint_sequential

PARTIAL = functools.partial(ck, use_reentrant=False)


class FrozenPrefix(nn.Module):
    """Embeddings that do not train, six blocks under reentrant checkpoints, and a head: 2 + 12 parameters train."""

    def __init__(self):
        super().__init__()
        self.prefix = nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = self.prefix(x)
        for block in self.blocks:
            x = torch.tanh(c.checkpoint(block, x, use_reentrant=True))
        return self.head(x).mean()


def prefix(batch_size: int = 4):
    return FrozenPrefix(), torch.randn(batch_size, 8)


class Block(nn.Module):
    def __init__(self, drop: float):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(drop), nn.Linear(32, 16))

    def forward(self, x):
        return x + self.body(x)


class Wrapped(nn.Module):
    def __init__(self, way: str, drop: float):
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(4))
        self.head = nn.Linear(16, 1)
        self.way = way

    def forward(self, x):
        x = self.stem(x)
        if self.way == "sequential":
            return self.head(checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=False)).mean()
        for block in self.blocks:
            x = self.called(block, x)
        return self.head(x).mean()

    def called(self, block, x):
        ways = {
            "none": lambda: block(x),
            "module": lambda: c.checkpoint(block, x, use_reentrant=False),
            "partial": lambda: PARTIAL(block, x),
            "reentrant": lambda: ck(block, x, use_reentrant=True),
            "keywords": lambda: ck(lambda y: block(y), use_reentrant=False, preserve_rng_state=True, y=x),
            "lossy": lambda: ck(block, x, use_reentrant=False, preserve_rng_state=False),
        }
        return ways[self.way]()


def wrapped(way: str = "module", drop: float = 0.0, batch_size: int = 32):
    return Wrapped(way, drop), torch.randn(batch_size, 16)
