"""Models of which not all parameters train, or get a gradient; and what of them a step keeps."""

import copy
from collections import OrderedDict

import torch
from torch import nn

WIDTH, BATCH, DEPTH = 32, 64, 3


class Averaged(nn.Module):
    """A model beside an averaged copy of its layers, which no forward runs: frozen, in evaluation mode, or neither."""

    def __init__(self, is_frozen: bool, trains: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.average = copy.deepcopy(self.layers).requires_grad_(not is_frozen).train(trains)

    def forward(self, x):
        with torch.no_grad():
            for own, other in zip(self.average.parameters(), self.layers.parameters(), strict=True):
                own.lerp_(other, 0.5)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().sum()


def averaged(batch_size: int = 4, is_frozen: bool = True, trains: bool = True):
    return Averaged(is_frozen, trains), torch.randn(batch_size, 8)


def tower(hook: str = "on"):
    """A tower that does not train, and a head that does; a hook on the tower's input makes it need a gradient."""
    layers = (layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    parts = {"embed": nn.Linear(WIDTH, WIDTH), "tower": nn.Sequential(*layers), "head": nn.Linear(WIDTH, 1)}
    net = nn.Sequential(OrderedDict(parts))
    net.embed.requires_grad_(False)
    net.tower.requires_grad_(False)
    if hook == "on":
        net.embed.register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    return net, torch.randn(BATCH, WIDTH), lambda out: out.mean()


class Watched(nn.Module):
    """Keeps an activation's gradient until its next forward, as Grad-CAM does."""

    def __init__(self, width: int, keeps: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 1)
        self.keeps, self.gradient = keeps, None

    def forward(self, x):
        self.gradient = None  # what the last backward left goes here
        hidden = torch.relu(self.first(x))
        if self.keeps == "gradient":
            hidden.register_hook(lambda gradient: setattr(self, "gradient", gradient))
        return self.last(hidden)


def watched(batch_size: int = 64, width: int = 256, keeps: str = "gradient"):
    return Watched(width, keeps), torch.randn(batch_size, width), lambda out: out.sum()


class Net(nn.Sequential):
    gradient_checkpointing = False


def in_mode(mode: str = "training", batch_size: int = 4):
    """A model in train mode, or of which all or a part is in eval mode."""
    net = Net(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    if mode in ("partly", "frozen"):
        net[1].eval().requires_grad_(mode != "frozen")
    if mode == "switched":
        net.eval().gradient_checkpointing = True
    return net, torch.randn(batch_size, 8), lambda out: out.sum()


class Lossy(nn.Module):
    """Has parameters that get no gradient for three reasons."""

    def __init__(self):
        super().__init__()
        self.body, self.detached, self.off, self.unused, self.frozen = (nn.Linear(8, 8) for _ in range(5))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            x = x + self.off(x)
        x = self.body(self.frozen(x))
        return (x + self.detached(x).detach()).square().mean()


def lossy(batch_size: int = 4):
    return Lossy(), torch.randn(batch_size, 8)


class Apart(nn.Module):
    """Trains one layer by a loss of its own, with a backward within the forward, before the other layer runs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        torch.tanh(self.first(x)).square().mean().backward()
        return torch.tanh(self.last(x)).square().mean()


def apart(batch_size: int = 64, width: int = 32):
    return Apart(width), torch.randn(batch_size, width)
