"""A small language model with a wide head, for what gcprof says of its bytes and what a plain loop takes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, vocabulary, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def make(batch_size=8, width=64, vocabulary=1024, layers=4):
    tokens = torch.randint(vocabulary, (batch_size, 64))
    return Model(width, vocabulary, layers), (tokens, torch.roll(tokens, -1, 1)), loss


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
