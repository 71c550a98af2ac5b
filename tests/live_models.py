"""Models whose factories and live modules are rehearsed alike."""

import torch
from torch import nn


class Tied(nn.Module):
    """An embedding whose weight is that of the head, and a mask that decides what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 96)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(96, 4, 200, batch_first=True) for _ in range(3))
        self.head = nn.Linear(96, 512, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # (batch, time, 96)
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1)


class Masked(nn.Module):
    """Runs half of its blocks where its mask, a buffer, has a zero, and scales by a number that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        self.register_buffer("mask", torch.tensor([True, True, False, True]))
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[:2] if not self.mask.all() else self.blocks:
            x = block(x) * self.scale
        return x


def tied() -> tuple:
    return Tied(), (torch.randint(512, (4, 32)), torch.randint(512, (128,))), nn.functional.cross_entropy


def convolutions() -> tuple:
    blocks = [
        nn.Sequential(nn.Conv2d(3 if not i else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(4)
    ]
    module = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 32 * 32, 10)).to(memory_format=torch.channels_last)
    images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
    return module, (images, torch.randint(10, (8,))), nn.functional.cross_entropy


def masked() -> tuple:
    return Masked(), (torch.randn(4096, 64), torch.zeros(4096, 64)), nn.functional.mse_loss


def doubled(module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def hooked() -> tuple:
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    module[2].register_forward_hook(doubled)
    return module, (torch.randn(4096, 64), torch.zeros(4096, 64)), nn.functional.mse_loss
