"""Attention that asks whether its mask masks anything, as transformers does; and the same told by hand."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

HEADS = 2


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Net(nn.Module):
    def __init__(self, ask, width=32, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 10 * width)  # whose backward is the peak: kernels take nothing of their own there
        self.ask = ask

    def forward(self, ids, mask):
        x = self.embedding(ids)
        rows = mask.to(torch.bool)
        whole = None if self.ask(rows) else rows[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        for layer in self.layers:
            x = layer(x, whole)
        return self.head(x).exp().mean()


def written(ids):
    mask = torch.ones_like(ids)
    mask[1:, ids.shape[1] * 3 // 4 :] = 0
    return mask


def by_lengths(ids):
    lengths = torch.tensor([ids.shape[1]] + [ids.shape[1] // 2] * (ids.shape[0] - 1))
    return (torch.arange(ids.shape[1])[None] < lengths[:, None]).float()


MASKS = {"ones": torch.ones_like, "tokens": lambda ids: ids != 0, "written": written, "lengths": by_lengths}
QUESTIONS = {
    "all": lambda mask: mask.all(),
    "sum": lambda mask: mask.sum() == mask.numel(),
    "equal": lambda mask: torch.equal(mask, torch.ones_like(mask)),
    "any": lambda mask: not (~mask).any().item(),
    "whole": lambda mask: True,  # as it is known by hand
    "padded": lambda mask: False,
}


def make(batch_size=4, length=64, mask="ones", question="all"):
    net = Net(QUESTIONS[question])
    ids = torch.randint(1, 100, (batch_size, length))
    return net, {"ids": ids, "mask": MASKS[mask](ids)}
