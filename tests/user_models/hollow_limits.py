"""Models that ask a rehearsed device for what it does not have."""

import torch
from torch import nn


class Orthogonal(nn.Linear):
    def forward(self, x):
        return torch.linalg.qr(super().forward(x))[0]


class Chosen(nn.Linear):
    def forward(self, x):
        numbers = torch.arange(8, device=x.device)
        return super().forward(x) * torch.isin(numbers, torch.arange(0, 400, 2, device=x.device))


class Elsewhere(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.ones(8, device="cpu")


LAYERS = {"qr": Orthogonal, "isin": Chosen, "elsewhere": Elsewhere}


def make(kind: str, batch_size=8):
    return LAYERS[kind](8, 8), torch.ones(batch_size, 8), lambda output: output.sum()
