"""A decoder whose loop passes a mask and a table of rotations to every layer."""

import torch
from torch import nn
from torch.nn import functional as F


class DecoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask, *, rotation, scale=1.0):
        q, k = self.q(x) * rotation, self.k(x) * rotation
        scores = q @ k.transpose(-2, -1) * scale
        x = x + self.o(scores.masked_fill(mask, float("-inf")).softmax(-1) @ self.v(x))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, vocab, dim, depth):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([DecoderLayer(dim) for _ in range(depth)])
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        rotation = torch.arange(length, device=ids.device).float().cos()[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask, rotation=rotation, scale=self.dim**-0.5)
        return self.lm_head(x)


def decoder(batch_size: int = 4, *, dim: int = 32, depth: int = 6):
    ids = torch.randint(0, 50, (batch_size, 17))
    loss = lambda logits, targets: F.cross_entropy(logits.reshape(-1, 50), targets.reshape(-1))  # noqa: E731
    return Decoder(50, dim, depth), (ids[:, :-1], ids[:, 1:]), loss
