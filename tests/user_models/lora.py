"""A frozen backbone with low-rank adapters: most parameters have no gradient, nor has the first activation."""

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.B = nn.Parameter(torch.randn(base.out_features, rank) * 0.01)

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


class Backbone(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.stem = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def finetune(batch_size=8, dim=16, rank=2, depth=6):
    model = Backbone(dim, depth)
    model.requires_grad_(False)
    for block in model.blocks:
        block.fc1 = LoRALinear(block.fc1, rank)
    x = torch.randn(batch_size, dim)
    trainable = [p for p in model.parameters() if p.requires_grad]
    return model, (x, x.roll(1, 0)), nn.MSELoss(), torch.optim.AdamW(trainable, lr=1e-4)
