"""A frozen bf16 base under an adapter in fp32: a step that is only possible under autocast."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8, dtype=torch.bfloat16).requires_grad_(False)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        x = self.base(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.float()


def make():
    return Adapted(), (torch.randn(4, 8), torch.randn(4, 8)), nn.functional.mse_loss
