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


class ByPositions(nn.Module):
    """Attention with a bias for each pair of positions, as T5 has it: its heads are last where it is made."""

    def __init__(self, width, heads, key_heads, *, is_biased):
        super().__init__()
        self.heads, self.key_heads, size = heads, key_heads, width // heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, 2 * key_heads * size)
        self.bias = nn.Embedding(32, heads) if is_biased else None

    def forward(self, x):
        batch, time, _ = x.shape
        query = self.query(x).view(batch, time, self.heads, -1).transpose(1, 2)
        key, value = self.key(x).view(batch, time, 2 * self.key_heads, -1).transpose(1, 2).chunk(2, 1)
        bias = None
        if self.bias is not None:
            places = torch.arange(time, device=x.device)
            bias = self.bias((places[:, None] - places).clamp(0, 31)).permute(2, 0, 1).unsqueeze(0)
        shares = self.key_heads != self.heads
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=shares)
        return x + attended.transpose(1, 2).reshape(x.shape)


def by_positions():
    blocks = [ByPositions(256, 8, 8, is_biased=True) for _ in range(3)]
    return nn.Sequential(*blocks), torch.randn(4, 128, 256), lambda out: out.square().mean()


def shared_keys():
    blocks = [ByPositions(256, 8, 2, is_biased=False) for _ in range(3)]
    return nn.Sequential(*blocks), torch.randn(4, 128, 256), lambda out: out.square().mean()


def labels_in_a_closure():
    labels = torch.randint(10, (4096, 64))
    head = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 640))
    return head, torch.randn(4096, 64), lambda out: nn.functional.cross_entropy(out.view(4096, 10, 64), labels)
