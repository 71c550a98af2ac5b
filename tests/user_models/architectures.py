"""Models as users write them: each has a trait of its own."""

import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm


class Layered(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)


@dataclass
class Batch:
    features: torch.Tensor
    target: torch.Tensor


class Regressor(Layered):
    def forward(self, batch):
        return self.layers(batch.features).squeeze(-1)


def dataclass_batch(batch_size=16, width=32):
    features = torch.randn(batch_size, 8)
    batch = Batch(features, features.sum(1))
    layers = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6))
    model = Regressor(nn.Linear(8, width), *layers, nn.Linear(width, 1))
    return model, batch, lambda output, batch: ((output - batch.target) ** 2).mean()


class Tied(nn.Module):
    """ALBERT-like: one layer run many times, and an embedding tied to the output."""

    def __init__(self, vocab=40, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.project = nn.Linear(dim, vocab, bias=False)
        self.project.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(6):
            x = self.layer(x)
        return self.project(x)


def shared_weights():
    ids = torch.randint(0, 40, (4, 12))
    loss = lambda logits, targets: F.cross_entropy(logits.flatten(0, -2), targets.flatten())  # noqa: E731
    return {"module": Tied(), "batch": (ids, ids), "loss": loss}


class Tagger(nn.Module):
    """A sequence tagged by recurrent layers, whose output is a tuple, between two linear ones."""

    def __init__(self, kind, width, layers):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.layer = getattr(nn, kind)(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, 16)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[0]).pow(2).mean()


def recurrent(batch_size=8, time=40, width=48, kind="LSTM", layers=1):
    return Tagger(kind, width, layers), torch.randn(batch_size, time, 16)


class Potential(Layered):
    """Trained on forces: its forward differentiates the energy, and the backward does so again."""

    def forward(self, positions):
        energy = self.layers(positions.requires_grad_())
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return energy, -gradient


def potential(width=16):
    positions, forces = torch.randn(2, 6, 3)
    layers = nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    return Potential(*layers), (positions, forces), lambda found, forces: (found[1] - forces).square().mean()


class Double(nn.Sequential):
    def __init__(self, inputs, outputs):
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        super().__init__(first, nn.ReLU(), second, nn.ReLU())


class UNet(nn.Module):
    """What the way down leaves is used on the way up."""

    def __init__(self, widths=(4, 8, 16)):
        super().__init__()
        self.downs = nn.ModuleList([Double(i, o) for i, o in zip((1, *widths[:-1]), widths, strict=True)])
        self.bottom = Double(widths[-1], widths[-1])
        self.ups = nn.ModuleList([Double(2 * o if o == widths[-1] else 3 * o, o) for o in reversed(widths)])
        self.last = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, skips.pop()], dim=1))
        return self.last(x)


def segmentation(batch_size=2, kind=UNet):
    images = torch.rand(batch_size, 1, 32, 32)
    return kind(), (images, (images > 0.5).float()), F.binary_cross_entropy_with_logits


class Transposed(nn.Module):
    """Its blocks stand in the order in which they run; what a transposed convolution gives, only `cat` reads."""

    def __init__(self):
        super().__init__()
        up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.layers = nn.ModuleList([Double(1, 8), Double(8, 16), up, Double(16, 8)])
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        down, bottom, up, out = self.layers
        skip = down(x)
        x = bottom(F.max_pool2d(skip, 2))
        return self.last(out(torch.cat([skip, up(x)], dim=1)))


def transposed(batch_size=2):
    return segmentation(batch_size, Transposed)


def blocks(linear, width=16):
    return nn.Sequential(*(nn.Sequential(linear(), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)))


def critic(batch_size=8):
    model = blocks(lambda: spectral_norm(nn.Linear(16, 16)))
    return model, torch.randn(batch_size, 16), lambda output: output.square().mean()


class Unordered(nn.Module):
    """Adds in an order that no seed fixes, as kernels of a GPU do: what is 0 but for rounding is noise."""

    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(width, width)  # its bias has no effect behind the BatchNorm
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        order = torch.tensor(sorted(range(len(x)), key=lambda _: os.urandom(8)), device=x.device)
        return self.norm(self.hidden(x)[order])[order.argsort()].relu()


def any_order(batch_size=64, width=16):
    model = nn.Sequential(*(Unordered(width) for _ in range(3)), nn.Linear(width, 1))
    return model, torch.randn(batch_size, width), lambda output: 100 * output.square().mean()
