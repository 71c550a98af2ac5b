"""GPT-2 as chapter 5 of LLMs-from-scratch trains it: by hand, and with PyTorch's own layers."""

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import NewGELUActivation

DROPOUT, WIDTH, HEADS, LAYERS = 0.1, 768, 12, 12
Mask = Literal["kept", "passing", "flash"]


class Attention(nn.Module):
    """Causal attention by hand, whose mask is a buffer or made at each call; or PyTorch's kernel, of one projection."""

    def __init__(self, context: int, mask: Mask) -> None:
        super().__init__()
        sizes = (3 * WIDTH,) if mask == "flash" else (WIDTH, WIDTH, WIDTH)
        self.projections = nn.ModuleList(nn.Linear(WIDTH, size, bias=False) for size in sizes)
        self.out, self.dropout, self.mask = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT), mask
        if mask == "kept":
            self.register_buffer("above", torch.triu(torch.ones(context, context), diagonal=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        if self.mask == "flash":
            parts = self.projections[0](x).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*parts, dropout_p=DROPOUT, is_causal=True)
            return self.out(mixed.transpose(1, 2).contiguous().view(batch, time, width))
        keys, queries, values = (layer(x).view(batch, time, HEADS, -1).transpose(1, 2) for layer in self.projections)
        scores = queries @ keys.transpose(2, 3)  # (batch, head, time, time)
        if self.mask == "kept":
            above = self.above.bool()[:time, :time]
        else:
            above = torch.triu(torch.ones(time, time, dtype=torch.bool, device=x.device), diagonal=1)
        scores.masked_fill_(above, -math.inf)
        weights = self.dropout(torch.softmax(scores / math.sqrt(keys.shape[-1]), dim=-1))
        return self.out((weights @ values).transpose(1, 2).reshape(batch, time, width))


class LayerNorm(nn.LayerNorm):
    """A layer norm by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        normal = (x - mean) / torch.sqrt(variance + 1e-5)
        return self.weight * normal + self.bias


class Dropped(nn.Sequential):
    """Layers of which the result is dropped and added to what they are given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


class Gpt(nn.Module):
    """Embeddings, blocks of attention and an MLP, each normed before, and a norm and a head of its own."""

    def __init__(self, vocabulary: int, context: int, mask: Mask, *, own: bool) -> None:
        super().__init__()

        def block() -> nn.Module:
            first, second, attention = norm(WIDTH), norm(WIDTH), Attention(context, mask)
            gelu = NewGELUActivation() if own else nn.GELU(approximate="tanh")
            mlp = nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH)
            dropout = nn.Dropout(DROPOUT)
            return nn.Sequential(Dropped(first, attention, dropout), Dropped(second, *mlp, dropout))

        norm = LayerNorm if own else nn.LayerNorm
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(context, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(block() for _ in range(LAYERS)))
        self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.dropout(x))))


def gpt(batch_size: int = 8, time: int = 1024, mask: Mask = "kept", own: bool = True, vocabulary: int = 50_257) -> Any:
    """GPT-2 with 124 million parameters and an untied head; `own` is the norm and the GELU by hand."""
    tokens, targets = (torch.randint(vocabulary, (batch_size, time)) for _ in range(2))
    model = Gpt(vocabulary, time, mask, own=own)
    return model, (tokens, targets), lambda y, targets: functional.cross_entropy(y.flatten(0, 1), targets.flatten())
