"""A tower that does not train, and a head that does; a hook on the tower's input makes it need a gradient."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, BATCH, DEPTH = 32, 64, 3


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.tower = Tower()
        self.head = nn.Linear(WIDTH, 1)
        self.embed.requires_grad_(False)
        self.tower.requires_grad_(False)

    def forward(self, x):
        return self.head(self.tower(self.embed(x))).mean()


def make(hook: str = "on"):
    net = Tuned()
    if hook == "on":
        net.embed.register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    return net, torch.randn(BATCH, WIDTH)
