"""Steps that leave something behind, each in its own way: a list, a buffer, a graph, a cycle, or nothing that grows."""

from collections import deque

import torch
from torch import nn

LOSSES = []


class Recorder:
    """Refers to itself, so that only Python's collector of cycles frees it."""

    def __init__(self, output) -> None:
        self.output = output
        self.me = self


class Net(nn.Module):
    history: torch.Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.how = how
        self.outputs = []
        self.last = None
        self.queue = deque(maxlen=64)
        self.unused = nn.Parameter(torch.zeros(64))
        self.calls = 0
        self.register_buffer("history", torch.empty(0, 4))

    def forward(self, x):
        self.calls += 1
        hidden = self.layer(x).sin()
        output = self.head(hidden)
        if self.how == "outputs":
            self.outputs.append(output.detach())
        elif self.how == "graph":
            self.outputs.append(self.layer(x).sin().sum())
        elif self.how == "buffer":
            self.history = torch.cat([self.history, output.detach()])
        elif self.how == "cycle":
            Recorder(hidden.detach())
        elif self.how == "losses" and self.calls <= 2:
            Recorder(hidden.detach())  # freed by the collector, and not by the steps that grow
        elif self.how == "last":
            self.last = hidden.detach()
        elif self.how == "queue":
            self.queue.append(hidden.detach())
        elif self.how == "late" and self.calls > 1:
            output = output + self.unused.sum()
        return output


def make(how: str = "nothing", batch_size: int = 8):
    kept = []

    def loss(output):
        value = output.square().mean()
        if how == "losses":
            LOSSES.append(value)
        elif how == "closure":
            kept.append(value)
        return value

    return Net(how), torch.randn(batch_size, 16), loss
