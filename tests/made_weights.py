"""Models whose step makes what does not grow with the batch: weights, tables and masks."""

import torch
import torch.nn.functional as F
from torch import nn

from profiler.training.workload import Workload

WIDTH = 512


class Standardised(nn.Conv2d):
    """A convolution whose weight is normalised in every forward."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        weight = weight / (weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, padding=1)


class Merged(nn.Linear):
    """A frozen weight with a trained one of low rank added."""

    def __init__(self, width):
        super().__init__(width, width, bias=False)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(4, width))
        self.up = nn.Parameter(torch.zeros(width, 4))

    def forward(self, x):
        return F.gelu(F.linear(x, self.weight + self.up @ self.down))


class Dequantised(nn.Module):
    """A weight of 8 bits that becomes floats in every forward."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("packed", torch.zeros(width, width, dtype=torch.int8))
        self.scale = nn.Parameter(torch.ones(width, 1))

    def forward(self, x):
        return F.relu(x @ (self.packed.float() * self.scale).t().contiguous())


class Masked(nn.Module):
    """Attention in steps with a table of places, a causal mask, and states that begin as zeros."""

    def __init__(self, width, time):
        super().__init__()
        self.places = nn.Embedding(time, width)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        mask = torch.full((time, time), -torch.inf).triu(1)
        x = x + self.places(torch.arange(time))
        scores = (x @ x.transpose(1, 2) + mask).softmax(-1)
        state = torch.zeros(batch, width)
        first = self.mix(self.first.expand(batch, -1, -1))
        return self.mix(scores @ x.to(scores.dtype) + state[:, None]) + first


def make(batch_size=32, kind="merged", layers=4):
    kinds = {
        "standardised": lambda: Standardised(64, 64, 3),
        "merged": lambda: Merged(WIDTH),
        "dequantised": lambda: Dequantised(WIDTH),
        "masked": lambda: Masked(64, 256),
    }
    shapes = {"standardised": (64, 8, 8), "masked": (256, 64)}
    module = nn.Sequential(*(kinds[kind]() for _ in range(layers)))
    batch = torch.zeros(batch_size, *shapes.get(kind, (WIDTH,)))
    return Workload(module=module, batch=batch, loss=lambda module, batch: module(batch).square().mean())


def contrasted(batch_size=512, width=64):
    """Every sample is compared with every other: a matrix that grows with the square of the batch."""
    module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def loss(module, batch):
        one, other = module(batch), module(batch.flip(0))
        return F.cross_entropy(F.normalize(one, dim=1) @ F.normalize(other, dim=1).t(), torch.arange(len(one)))

    return Workload(module=module, batch=torch.zeros(batch_size, width), loss=loss)


def recurrent(batch_size=32, width=64, time=32):
    """A cell over a sequence that leads with the time; its labels are in the loss's closure."""
    labels = torch.zeros(batch_size, dtype=torch.long)

    def loss(module, batch):
        state = torch.zeros(batch.shape[1], width)
        for x in batch:
            state = module(x, state)
        return F.cross_entropy(state, labels)

    return Workload(module=nn.GRUCell(width, width), batch=torch.zeros(time, batch_size, width), loss=loss)
