"""A U-Net: what the way down leaves is used on the way up."""

import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
        )

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    def __init__(self, widths=(4, 8, 16)):
        super().__init__()
        self.downs = nn.ModuleList([DoubleConv(i, o) for i, o in zip((1, *widths[:-1]), widths)])
        self.bottom = DoubleConv(widths[-1], widths[-1])
        self.ups = nn.ModuleList([DoubleConv(2 * o if o == widths[-1] else 3 * o, o) for o in reversed(widths)])
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


def segmentation(batch_size=2):
    images = torch.rand(batch_size, 1, 32, 32)
    return UNet(), (images, (images > 0.5).float()), F.binary_cross_entropy_with_logits


class Transposed(nn.Module):
    """Its blocks stand in the order in which they run; what a transposed convolution gives, only `cat` reads."""

    def __init__(self, width=8):
        super().__init__()
        half, whole = width, 2 * width
        up = nn.ConvTranspose2d(whole, half, 2, stride=2)
        self.layers = nn.ModuleList([DoubleConv(1, half), DoubleConv(half, whole), up, DoubleConv(whole, half)])
        self.last = nn.Conv2d(half, 1, 1)

    def forward(self, x):
        down, bottom, up, out = self.layers
        skip = down(x)
        x = bottom(F.max_pool2d(skip, 2))
        return self.last(out(torch.cat([skip, up(x)], dim=1)))


def transposed(batch_size=2):
    images = torch.rand(batch_size, 1, 32, 32)
    return Transposed(), (images, (images > 0.5).float()), F.binary_cross_entropy_with_logits
