"""Models that ask a rehearsed device for what it does not have."""

import torch
from torch import nn


class Orthogonal(nn.Linear):
    def forward(self, x):
        return torch.linalg.qr(super().forward(x))[0]


def qr(batch_size=8):
    return Orthogonal(8, 8), torch.ones(batch_size, 8), lambda output: output.sum()
