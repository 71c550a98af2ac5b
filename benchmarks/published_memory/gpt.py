"""GPT-2 as chapter 5 of LLMs-from-scratch trains it: by hand, and with PyTorch's own layers."""

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import NewGELUActivation

Mask = Literal["kept", "passing", "flash"]


class Attention(nn.Module):
    """Causal attention by hand: its mask is a buffer, or made at each call."""

    def __init__(self, width: int, heads: int, context: int, dropout: float, *, keeps_mask: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        if keeps_mask:
            self.register_buffer("mask", torch.triu(torch.ones(context, context), diagonal=1))
        self.keeps_mask = keeps_mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        keys, queries, values = (
            layer(x).view(batch, time, self.heads, -1).transpose(1, 2) for layer in (self.key, self.query, self.value)
        )
        scores = queries @ keys.transpose(2, 3)  # (batch, head, time, time)
        scores.masked_fill_(self.above(time, x.device), -math.inf)
        weights = self.dropout(torch.softmax(scores / math.sqrt(keys.shape[-1]), dim=-1))
        return self.out((weights @ values).transpose(1, 2).reshape(batch, time, width))

    def above(self, time: int, device: torch.device) -> torch.Tensor:
        if self.keeps_mask:
            return self.mask.bool()[:time, :time]
        return torch.triu(torch.ones(time, time, dtype=torch.bool, device=device), diagonal=1)


class FlashAttention(nn.Module):
    """Causal attention by PyTorch's own kernel, of one projection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        queries, keys, values = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, dropout_p=self.dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, time, width))


class LayerNorm(nn.Module):
    """A layer norm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        normal = (x - mean) / torch.sqrt(variance + 1e-5)
        return self.scale * normal + self.shift


class Block(nn.Module):
    """Attention and an MLP, each normed before and dropped after."""

    def __init__(self, width: int, heads: int, context: int, dropout: float, mask: Mask, *, own: bool) -> None:
        super().__init__()
        norm = LayerNorm if own else nn.LayerNorm
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.attention = (
            FlashAttention(width, heads, dropout)
            if mask == "flash"
            else Attention(width, heads, context, dropout, keeps_mask=mask == "kept")
        )
        gelu = NewGELUActivation() if own else nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.attention(self.norms[0](x))) + x
        return self.dropout(self.mlp(self.norms[1](x))) + x


class Gpt(nn.Module):
    """Embeddings, blocks, a norm and a head of its own."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int, mask: Mask, *, own: bool):
        super().__init__()
        dropout = 0.1
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, context, dropout, mask, own=own) for _ in range(layers)))
        self.norm = LayerNorm(width) if own else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.dropout(x))))


def gpt(batch_size: int = 8, time: int = 1024, mask: Mask = "kept", own: bool = True, vocabulary: int = 50_257) -> Any:
    """GPT-2 with 124 million parameters and an untied head; `own` is the norm and the GELU by hand."""
    module = Gpt(vocabulary, time, 768, 12, 12, mask, own=own)
    tokens, targets = (torch.randint(vocabulary, (batch_size, time)) for _ in range(2))
    return module, (tokens, targets), loss


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over all positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
