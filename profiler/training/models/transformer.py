"""A decoder-only transformer as in GPT-2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.training.workload import Workload


class Block(nn.Module):
    """A pre-norm block: attention and a four times wider MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self._attend(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        attended: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return attended


class Transformer(nn.Module):
    """Embeddings of tokens and positions, the blocks, a norm, and an untied head."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]  # (batch, time, width)
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))  # (batch, time, vocabulary)
        return logits


def build(
    batch_size: int = 8,
    *,
    layers: Count = 6,
    width: Count = 128,
    heads: Count = 4,
    sequence: Count = 128,
    vocabulary: Count = 512,
    dropout: float = 0.1,
) -> Workload:
    """A GPT-like transformer: pre-norm, causal attention, GELU, an untied head; predicts the next token.

    Dropout acts on the embeddings and on what each half of a block adds, not within the attention. A block has
    12 width^2 + 13 width parameters. Raises Unsupported where the heads do not divide the width.
    """
    if width % heads:
        raise Unsupported(f"width={width} cannot be divided into {heads} heads")
    module = Transformer(layers, width, heads, sequence, vocabulary, dropout)
    tokens = torch.randint(vocabulary, (batch_size, sequence + 1))  # (batch, time + 1)
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())  # each predicts the next
    return Workload(module=module, blocks=tuple(f"blocks.{i}" for i in range(layers)), batch=batch, loss=_loss)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    tokens, targets = batch
    return F.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())
