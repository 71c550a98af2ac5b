"""LoRA of the queries and values as LitGPT fine-tunes: frozen weights in bfloat16, logits made in chunks, in fp32."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published_memory.single_layers import gated_mlp

RANK, CHUNK = 8, 128
SHAPES = {  # layers, width, heads, rotating part of a head, inner width, vocabulary, tokens of the longest sample
    "phi": (24, 2048, 32, 0.5, 8192, 51_200, 1044),
    "stablelm": (16, 4096, 32, 0.25, 16_384, 50_688, 1034),
    "llama": (32, 4096, 32, 1.0, 11_008, 32_000, 1304),
}


class LoraProjection(nn.Linear):
    """One projection to queries, keys and values, and the update of the first and the last."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__(width, 3 * width, bias=bias)
        self.down = nn.Parameter(torch.randn(2 * RANK, width))
        self.up = nn.Parameter(torch.zeros(2 * width, RANK))
        self.dropout = nn.Dropout(0.05)
        self.places = [*range(width), *range(2 * width, 3 * width)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = functional.linear(self.dropout(x), self.down).transpose(-2, -1)  # (batch, 2 rank, time)
        update = functional.conv1d(low, self.up.unsqueeze(-1), groups=2).transpose(-2, -1)
        return super().forward(x) + self.padded(update.transpose(0, 1)).transpose(0, 1) * 2.0

    def padded(self, update: torch.Tensor) -> torch.Tensor:
        """Return the update with zeros for the keys."""
        shape = (*update.shape[:-1], self.out_features)
        blank = update.new_zeros(shape).view(-1, shape[-1])
        places = torch.tensor(self.places, device=blank.device)
        return blank.index_copy(1, places, update.reshape(-1, len(self.places))).view(shape)


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cosine) + (turned * sine)).type_as(x)


class RmsNorm(nn.RMSNorm):
    """An RMS norm in fp32 whatever the type of its input, as LitGPT's is since 24 October 2023."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean = torch.mean(wide * wide, dim=-1, keepdim=True)
        return (self.weight * (wide * torch.rsqrt(mean + 1e-5))).to(x.dtype)


class Block(nn.Module):
    """Attention and an MLP; beside each other but in Llama, and of one norm in phi."""

    def __init__(self, model: str, width: int, heads: int, part: float, inner: int) -> None:
        super().__init__()
        self.is_parallel, self.heads, self.rotating = model != "llama", heads, int(part * width / heads)
        norm = nn.LayerNorm if self.is_parallel else RmsNorm
        self.norm, self.norm_mlp = norm(width), None if model == "phi" else norm(width)
        self.qkv = LoraProjection(width, bias=self.is_parallel)
        self.out = nn.Linear(width, width, bias=self.is_parallel)
        gelu = nn.GELU(approximate="tanh" if model == "phi" else "none")
        plain = nn.Sequential(nn.Linear(width, inner), gelu, nn.Linear(inner, width))
        self.mlp = plain if self.is_parallel else gated_mlp(width, inner, "silu")

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        mixed = self.attention(normal, cosine, sine)
        if self.is_parallel:
            return self.mlp(normal if self.norm_mlp is None else self.norm_mlp(x)) + mixed + x
        x = mixed + x
        return self.mlp(self.norm_mlp(x)) + x

    def attention(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.qkv(x).view(batch, time, self.heads, 3, -1).permute(0, 2, 3, 1, 4)
        q, k, v = (part.reshape(batch, -1, time, width // self.heads) for part in parts.split((1, 1, 1), dim=2))
        q, k = (
            torch.cat((rotated(one[..., : self.rotating], cosine, sine), one[..., self.rotating :]), dim=-1)
            for one in (q, k)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Gpt(nn.Module):
    """A frozen model with LoRA in each block; its logits are a list of chunks.

    LitGPT's loop names them, so that they stay until the next forward gives others.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        layers, width, heads, part, inner, vocabulary, time = SHAPES[model]
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(model, width, heads, part, inner) for _ in range(layers))
        self.norm = RmsNorm(width) if model == "llama" else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=model == "phi")
        self.bfloat16()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith(("qkv.up", "qkv.down")))
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.rand(time, int(part * width / heads)).half())
        self.named: list[torch.Tensor] | None = None

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        self.named = None
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        chunks = [self.head(chunk) for chunk in self.norm(x).split(CHUNK, dim=1)]
        self.named = [chunk.float() for chunk in chunks]
        return self.named


def chunked(logits: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each chunk of logits, without the last position."""
    chunks = [*logits[:-1], logits[-1][:, :-1]]
    pairs = zip(chunks, targets[:, 1:].split(CHUNK, dim=1), strict=True)
    flat = [(chunk.reshape(-1, chunk.shape[-1]), part.reshape(-1)) for chunk, part in pairs]
    losses = [functional.cross_entropy(chunk, part, ignore_index=-1, reduction="none") for chunk, part in flat]
    return torch.cat(losses).mean()


def lora(batch_size: int = 1, model: str = "llama") -> Any:
    """A micro-batch of the longest samples."""
    vocabulary, time = SHAPES[model][-2:]
    tokens = torch.randint(vocabulary, (batch_size, time))
    return Gpt(model), (tokens, torch.randint(vocabulary, (batch_size, time))), chunked
