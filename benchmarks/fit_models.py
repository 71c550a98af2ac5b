"""Training steps that `benchmarks.fit` fits, which are not in gcprof's table of models."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.unusual_modules import Block


class Language(nn.Module):
    """An embedding, blocks, and a head; the loss of the next token."""

    def __init__(self, blocks: list[nn.Module], width: int, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # (batch, time, width)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def lstm(batch_size: int = 64, sequence: int = 256, width: int = 1024, layers: int = 6) -> tuple[Any, ...]:
    """Return a language model of LSTMs."""

    def layer(block: Any, x: torch.Tensor) -> torch.Tensor:
        return x + block.lstm(block.norm(x))[0]

    parts = [(nn.LayerNorm(width), nn.LSTM(width, width, batch_first=True)) for _ in range(layers)]
    module = Language([Block(layer, norm=norm, lstm=lstm) for norm, lstm in parts], width, 10000)
    return module, torch.randint(10000, (batch_size, sequence))


class Experts(nn.Module):
    """Attention, and a layer of experts of which each token goes to the first two."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.router = nn.Linear(width, number)
        self.up = nn.Parameter(torch.randn(number, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(number, 4 * width, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        tokens = self.norms[1](x).flatten(0, 1)  # (tokens, width)
        weights = self.router(tokens).softmax(-1)  # (tokens, experts)
        capacity = 2 * len(tokens) // weights.shape[1]
        top, index = weights.topk(capacity, dim=0)  # (capacity, experts): each expert chooses its tokens
        picked = tokens[index.t().flatten()].unflatten(0, (-1, capacity))  # (experts, capacity, width)
        made = (F.gelu(picked @ self.up) @ self.down) * top.t()[..., None].to(picked.dtype)
        added = torch.zeros_like(tokens).index_add(0, index.t().flatten(), made.flatten(0, 1).to(tokens.dtype))
        return x + added.view_as(x)


def moe(batch_size: int = 16, sequence: int = 512, width: int = 512, layers: int = 8) -> tuple[Any, ...]:
    """Return a language model with eight experts in every block, which choose their tokens."""
    module = Language([Experts(width, 8) for _ in range(layers)], width, 32000)
    return module, torch.randint(10000, (batch_size, sequence))


class Residual(nn.Module):
    """Two convolutions, and the time added between them, as in diffusion's U-Nets."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, before), nn.GroupNorm(8, after)])
        self.first, self.second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time, self.skip = nn.Linear(256, after), nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        y = self.second(F.silu(self.norms[1](y)))
        return y + self.skip(x)


class Denoiser(nn.Module):
    """A U-Net of three sizes with connections across, whose loss is that of the noise that it finds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        down, up = ((1, 1), (1, 1), (1, 2), (2, 2), (2, 4), (4, 4)), ((8, 4), (8, 2), (4, 2), (4, 1), (2, 1), (2, 1))
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(Residual(before * width, after * width) for before, after in down)
        self.up = nn.ModuleList(Residual(before * width, after * width) for before, after in up)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y, kept = self.stem(x), list[torch.Tensor]()
        for place, block in enumerate(self.down):
            y = block(F.avg_pool2d(y, 2) if place in {2, 4} else y, time)
            kept.append(y)
        for place, block in enumerate(self.up):
            y = block(torch.cat([F.interpolate(y, scale_factor=2) if place in {2, 4} else y, kept.pop()], 1), time)
        return self.out(y).square().mean()


def unet(batch_size: int = 32, width: int = 64, side: int = 64) -> tuple[Any, ...]:
    """Return a diffusion model's U-Net."""
    batch = tuple(torch.randn(size) for size in ((batch_size, 3, side, side), (batch_size, 256)))
    return Denoiser(width), batch
