"""A 12-block transformer for tests, written as plain PyTorch."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.training.workload import Workload


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, time, width)), self.dropout)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Its blocks are a list that the forward loops over, as in most models that people have."""

    def __init__(self, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.ModuleList([Block(width, 4, dropout) for _ in range(layers)])
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens)  # (batch, time, width)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # (batch, time, 100)


def build(batch_size: int = 4, *, layers: Count = 12, width: Count = 64, dropout: float = 0.1) -> Workload:
    """A small GPT with dropout."""
    module = Transformer(layers, width, dropout)
    tokens = torch.randint(100, (batch_size, 32))  # (batch, time)
    blocks = tuple(f"blocks.{i}" for i in range(layers))
    return Workload(module=module, blocks=blocks, batch=tokens, loss=_loss)


def _loss(module: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten())
