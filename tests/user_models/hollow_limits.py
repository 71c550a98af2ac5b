"""Models that ask a rehearsed device for what it does not have."""

import torch
from torch import nn


class Orthogonal(nn.Linear):
    def forward(self, x):
        return torch.linalg.qr(super().forward(x))[0]


def qr(batch_size=8):
    return Orthogonal(8, 8), torch.ones(batch_size, 8), lambda output: output.sum()


class Chosen(nn.Linear):
    def forward(self, x):
        numbers = torch.arange(8, device=x.device)
        return super().forward(x) * torch.isin(numbers, torch.arange(0, 400, 2, device=x.device))


class Misfit(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ x


class Elsewhere(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.ones(8, device="cpu")


def isin(batch_size=8):
    return Chosen(8, 8), torch.ones(batch_size, 8), lambda output: output.sum()


def misfit(batch_size=7):
    return Misfit(8, 8), torch.ones(batch_size, 8), lambda output: output.sum()


def elsewhere(batch_size=8):
    return Elsewhere(8, 8), torch.ones(batch_size, 8), lambda output: output.sum()
