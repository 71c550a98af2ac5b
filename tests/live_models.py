"""A model whose factory and live module are rehearsed alike, with all that is hard to send."""

import torch
from torch import nn


class Net(nn.Module):
    """Convolutions in channels_last, a head with the embedding's weight, and blocks of which a mask runs one half."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.embed = nn.Embedding(512, 96)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(96, 4, 200, batch_first=True) for _ in range(4))
        self.head = nn.Linear(96, 512, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.tensor([True, True, False, True]))
        self.register_buffer("second", self.mask[::2])  # a view of another
        self.scale = 0.5

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.stem(images).mean() * self.scale  # (batch, time, 96)
        for block in self.blocks[:2] if not self.mask.all() else self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def doubled(module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def make() -> tuple:
    module = Net().to(memory_format=torch.channels_last)
    module.blocks[1].register_forward_hook(doubled)
    images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
    return module, (images, torch.randint(512, (4, 32)))
