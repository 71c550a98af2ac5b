"""Models that go wrong in the second of the ranks that train them; alone, and in the first, all is well."""

import os
import signal

import torch
from torch import nn


class Faulty(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.fault = fault

    def forward(self, x):
        if os.environ.get("RANK") == "1":
            FAULTS[self.fault]()
        for block in self.blocks:
            x = torch.relu(block(x))
        return x.mean()


def runs_out():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1.00 GiB")


FAULTS = {
    "oom": runs_out,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": signal.pause,
    "none": lambda: None,
}


def make(fault="none"):
    return Faulty(fault), torch.ones(4, 8)  # the same batch on every rank
