"""A sequence tagged by recurrent layers between two linear ones."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, kind, width, layers):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.layer = getattr(nn, kind)(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, 16)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[0]).pow(2).mean()


def make(batch_size=8, time=40, width=48, kind="LSTM", layers=1):
    return Tagger(kind, width, layers), torch.randn(batch_size, time, 16)
