"""Modules whose CUDA kernels keep other tensors than the CPU's, and labels that only the loss holds."""

import torch
from torch import nn


class Cells(nn.Module):
    def __init__(self, cell, width=256):
        super().__init__()
        self.cell = cell(width, width)
        self.head = nn.Linear(width, width)

    def forward(self, steps):
        state = torch.zeros_like(steps[0])
        if isinstance(self.cell, nn.LSTMCell):
            state = state, state
        outs = []
        for step in steps:
            state = self.cell(step, state)
            outs.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(outs))


def rms_norm():
    blocks = [nn.Sequential(nn.RMSNorm(512), nn.Linear(512, 1024), nn.GLU()) for _ in range(4)]
    return nn.Sequential(*blocks), torch.randn(512, 512), lambda out: out.float().square().mean()


def gru_cell():
    return Cells(nn.GRUCell), torch.randn(8, 128, 256), lambda out: out.square().mean()


def lstm_cell():
    return Cells(nn.LSTMCell), torch.randn(8, 128, 256), lambda out: out.square().mean()


def labels_in_a_closure():
    labels = torch.randint(10, (4096, 64))
    head = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 640))
    return head, torch.randn(4096, 64), lambda out: nn.functional.cross_entropy(out.view(4096, 10, 64), labels)
