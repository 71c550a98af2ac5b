"""The residual networks of the CIFAR-10 experiments."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.training.workload import Workload

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, and a shortcut without parameters: every second pixel, and zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))  # (batch, outputs, size / stride, size / stride)
        y = self.norm2(self.conv2(y))
        half = self.new_channels // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half)) if half else x
        return F.relu(y + shortcut)


class CifarResNet(nn.Module):
    """A convolution, three stages of n blocks at 32 x 32, 16 x 16 and 8 x 8, and a linear layer."""

    def __init__(self, n: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        inputs = WIDTHS[0]
        stages: list[nn.Module] = []
        for stage, outputs in enumerate(WIDTHS):
            first = BasicBlock(inputs, outputs, stride=1 if stage == 0 else 2)
            stages.append(nn.Sequential(first, *[BasicBlock(outputs, outputs, 1) for _ in range(n - 1)]))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(images)))  # (batch, 16, 32, 32)
        x = self.stages(x)  # (batch, 64, 8, 8)
        logits: torch.Tensor = self.head(x.mean((2, 3)))  # (batch, classes)
        return logits


def build(batch_size: int = 128, *, depth: Count = 3, classes: Count = 10) -> Workload:
    """The CIFAR-10 ResNet of 6n+2 layers; `depth` is n: 3, 7, 13, 19 are ResNet-20, 44, 80, 116.

    2n convolutions in each of three stages, one before them and the linear layer make 6n+2; two convolutions and a
    shortcut are a block, so there are 3n blocks. Images are 3 x 32 x 32. Source: He et al., Deep Residual Learning
    for Image Recognition, 2016, section 4.2 (shortcuts of kind A).
    """
    module = CifarResNet(depth, classes)
    images = torch.randn(batch_size, 3, 32, 32)
    labels = torch.randint(classes, (batch_size,))  # (batch,)
    blocks = tuple(f"stages.{stage}.{index}" for stage in range(len(WIDTHS)) for index in range(depth))
    return Workload(module=module, blocks=blocks, batch=(images, labels), loss=_loss)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(module(images), labels)
