"""ALBERT-like: one layer run many times, and an embedding tied to the output."""

import torch
from torch import nn
from torch.nn import functional as F


class Tied(nn.Module):
    def __init__(self, vocab=40, dim=24, repeats=6):
        super().__init__()
        self.repeats = repeats
        self.embed = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.project = nn.Linear(dim, vocab, bias=False)
        self.project.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(self.repeats):
            x = self.layer(x)
        return self.project(x)


def factory():
    ids = torch.randint(0, 40, (4, 12))

    def criterion(logits, ids):
        return F.cross_entropy(logits.transpose(1, 2), ids)

    return {"module": Tied(), "batch": (ids, ids), "loss": criterion}
