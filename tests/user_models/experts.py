"""Mixtures of experts: the scores send each token to some of them, and the layer counts the load of each.

`sent` is where the tokens go: as the data would have it, `balanced` (the experts in turns) or `worst` (all tokens to the
same). `way` is how a layer gathers the tokens of an expert.
"""

from __future__ import annotations

import torch
from torch import nn


class Experts(nn.Module):
    """Of each token the best experts; `bincount`, `nonzero` and `index_add` hang on the data."""

    load: torch.Tensor
    preferred: torch.Tensor

    def __init__(self, width: int, num_experts: int, way: str, preferred: torch.Tensor | None) -> None:
        super().__init__()
        self.way = way
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))
        self.register_buffer("load", torch.zeros(num_experts))
        self.register_buffer("preferred", preferred)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x)
        if self.preferred is not None:
            scores = scores.tanh() + self.preferred
        return x + getattr(self, self.way)(x, scores.softmax(-1))

    def best(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """One expert a token, found expert by expert."""
        weights, chosen = scores.max(-1)
        self.load += torch.bincount(chosen, minlength=len(self.experts))
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (tokens,) = (chosen == number).nonzero(as_tuple=True)
            output = output.index_add(0, tokens, torch.tanh(expert(x[tokens])) * weights[tokens, None])
        return output

    def two(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Two experts a token, by a mask of experts by tokens."""
        weights, chosen = scores.topk(2, dim=-1)
        mask = nn.functional.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        output = torch.zeros_like(x)
        for number in mask.sum(dim=(-1, -2)).nonzero().flatten().tolist():
            place, tokens = torch.where(mask[number])
            given = torch.tanh(self.experts[number](x[tokens])) * weights[tokens, place, None]
            output.index_add_(0, tokens, given)
        return output

    def sorted(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Two experts a token, whose tokens lie side by side."""
        weights, chosen = scores.topk(2, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        parts = x[order // 2].split(counts)
        given = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(x).index_add(0, order // 2, torch.tanh(given) * weights.flatten()[order, None])


def make(batch_size=32, depth=3, width=8, num_experts=4, way="best", sent="data"):
    preferred = None
    if sent != "data":
        first = torch.arange(batch_size)[:, None] * (2 if way in ("two", "sorted") else 1) * (sent == "balanced")
        preferred = torch.full((batch_size, num_experts), -4.0)
        preferred.scatter_(1, (first + torch.arange(2)) % num_experts, torch.tensor([[8.0, 4.0]]).expand(batch_size, 2))
    return (
        nn.Sequential(*[Experts(width, num_experts, way, preferred) for _ in range(depth)]),
        torch.randn(batch_size, width),
        lambda out: out.square().mean(),
    )
