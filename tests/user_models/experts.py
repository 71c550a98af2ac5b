"""A mixture of experts whose tokens go where their scores say, and which counts the load of each expert."""

import torch
from torch import nn


class Experts(nn.Module):
    """Of each token the best expert; `bincount`, `nonzero` and `index_add` hang on the data."""

    load: torch.Tensor

    def __init__(self, width=8, num_experts=4):
        super().__init__()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))
        self.register_buffer("load", torch.zeros(num_experts))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        self.load += torch.bincount(chosen, minlength=len(self.experts))
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (tokens,) = (chosen == number).nonzero(as_tuple=True)
            output = output.index_add(0, tokens, torch.tanh(expert(x[tokens])) * weights[tokens, None])
        return x + output


def make(batch_size=32, depth=3):
    return (
        nn.Sequential(*[Experts() for _ in range(depth)]),
        torch.randn(batch_size, 8),
        lambda out: out.square().mean(),
    )
