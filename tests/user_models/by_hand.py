"""Models with checkpoints of their own within their blocks or outside of all, or with their inputs on the host."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


class Chain(nn.Module):
    def __init__(self, blocks, way):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.way = way

    def forward(self, x):
        with save_on_cpu() if self.way == "host" else nullcontext():
            for block in self.blocks:
                x = block(x) if self.way == "plain" else checkpoint(block, x, use_reentrant=False)
        return x


def deep(batch_size=4096, way="plain"):
    """Little but the inputs of checkpoints is there; and the same with those on the host."""
    blocks = (nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(24))
    return Chain(blocks, way), torch.randn(batch_size, 64), lambda out: out.sum()


def finer(batch_size=64, width=16, own=True):
    """Own checkpoints that are finer than any plan of whole blocks; a part keeps 16 times its input within."""

    def part():
        wide = 8 * width
        return nn.Sequential(nn.Linear(width, wide, bias=False), nn.Tanh(), nn.Linear(wide, width, bias=False))

    blocks = (Chain((part() for _ in range(12)), "own" if own else "plain") for _ in range(3))
    return Chain(blocks, "plain"), torch.randn(batch_size, width), lambda out: out.sum()


class Language(nn.Module):
    """Its logits and loss dominate; and the same step with its loss in chunks, each checkpointed."""

    def __init__(self, width, vocabulary, chunks):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(2))
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


def language(batch_size=2048, width=16, vocabulary=2048, chunks=1):
    tokens = torch.randint(vocabulary, (2, batch_size))
    return Language(width, vocabulary, chunks), (tokens[0], tokens[1])


def log_likelihood(logits, targets):
    return logits.gather(1, targets[:, None]).squeeze(1) - logits.logsumexp(1)


class Head(nn.Module):
    """Functions under checkpoints: what is computed again needs nothing but what is there, and frees nothing."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 512)

    def forward(self, inputs, targets):
        pairs = zip(self.head(inputs).split(16), targets.split(16), strict=True)
        chunks = [checkpoint(log_likelihood, *pair, use_reentrant=False) for pair in pairs]
        return -torch.cat(chunks).mean()


def head():
    return Head(), (torch.randn(64, 16), torch.randint(0, 512, (64,)))
