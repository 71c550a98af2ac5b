"""A language model whose logits and loss dominate; and the same step with its loss in chunks, each checkpointed."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


class Language(nn.Module):
    def __init__(self, width, vocabulary, depth, chunks):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.chunks = chunks

    def forward(self, tokens, targets):
        x = self.embedding(tokens)  # (tokens, width)
        for layer in self.layers:
            x = layer(x)
        if self.chunks == 1:
            return cross_entropy(self.head(x), targets)
        parts = zip(x.chunk(self.chunks), targets.chunk(self.chunks), strict=True)
        sums = [checkpoint(self.total, part, target, use_reentrant=False) for part, target in parts]
        return sum(sums) / len(targets)

    def total(self, part, target):
        return cross_entropy(self.head(part), target, reduction="sum")


def make(batch_size=2048, width=16, vocabulary=2048, depth=2, chunks=1):
    tokens = torch.randint(vocabulary, (2, batch_size))
    return Language(width, vocabulary, depth, chunks), (tokens[0], tokens[1])
