"""Video recognition as MMAction2 trains it: ResNets over frames, inflated ResNets, C3D."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
C3D = ((128, 1), (256, 2), (512, 2), (512, 2))  # widths and numbers of convolutions, after the first
PIXELS = 224


def unit(inward: int, outward: int, kernel: Sequence[int], stride: Sequence[int], *, acts: bool = True) -> nn.Module:
    """A convolution without a bias, a batch norm, and a ReLU in place; in as many dimensions as the kernel has."""
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if len(kernel) == 2 else (nn.Conv3d, nn.BatchNorm3d)
    padding = tuple(size // 2 for size in kernel)
    layers = [convolution(inward, outward, tuple(kernel), tuple(stride), padding, bias=False), norm(outward)]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if acts else []))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1; over time a kernel of three in the first where it is inflated."""

    def __init__(self, inward: int, width: int, stride: int, dimensions: int, *, inflated: bool = False) -> None:
        super().__init__()
        time, ones = (1,) * (dimensions - 2), (1,) * dimensions
        self.first = unit(inward, width, (3 if inflated else 1, 1, 1)[3 - dimensions :], ones)
        self.second = unit(width, width, (*time, 3, 3), (*time, stride, stride))
        self.third = unit(width, 4 * width, ones, ones, acts=False)
        is_wider = stride > 1 or inward != 4 * width
        self.shortcut = unit(inward, 4 * width, ones, (*time, stride, stride), acts=False) if is_wider else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.third(self.second(self.first(x)))
        return self.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class Shift(nn.Module):
    """Moves an eighth of the channels a frame back, another one ahead; then the convolution."""

    def __init__(self, convolution: nn.Module, frames: int) -> None:
        super().__init__()
        self.convolution, self.frames = convolution, frames

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, channels, height, width = x.shape
        x = x.view(-1, self.frames, channels, height * width)
        fold = channels // 8
        back, ahead, still = x[:, :, :fold], x[:, :, fold : 2 * fold], x[:, :, 2 * fold :]
        back = torch.cat((back[:, 1:], (back - back)[:, :1]), 1)
        ahead = torch.cat(((ahead - ahead)[:, :1], ahead[:, :-1]), 1)
        return self.convolution(torch.cat((back, ahead, still), 2).view(count, channels, height, width))


def stages(depths: Sequence[int], dimensions: int, inflated: Sequence[Sequence[int]] = ()) -> list[nn.Module]:
    """The four stages of a ResNet."""
    made, inward = [], 64
    for number, depth in enumerate(depths):
        width, blocks = 64 * 2**number, []
        for index in range(depth):
            stride = 2 if number and not index else 1
            is_inflated = bool(inflated) and bool(inflated[number][index % len(inflated[number])])
            blocks.append(Bottleneck(inward, width, stride, dimensions, inflated=is_inflated))
            inward = 4 * width
        made.append(nn.Sequential(*blocks))
    return made


class Frames(nn.Module):
    """A ResNet over all frames as one batch; the scores' or the features' mean over the frames of a clip."""

    def __init__(self, depth: int, frames: int, classes: int, dropout: float, *, shifts: bool) -> None:
        super().__init__()
        self.stem = unit(3, 64, (7, 7), (2, 2))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.Sequential(*stages(DEPTHS[depth], 2))
        for block in self.stages.modules():
            if shifts and isinstance(block, Bottleneck):
                block.first[0] = Shift(block.first[0], frames)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(2048, classes)
        self.frames, self.shifts = frames, shifts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.pool(self.stem(x.flatten(0, 1))))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        if self.shifts:
            return self.head(self.dropout(x)).view(-1, self.frames, self.head.out_features).mean(1)
        return self.head(self.dropout(x.view(-1, self.frames, x.shape[1]).mean(1)))


class Volume(nn.Module):
    """An inflated ResNet-50 over the clip as a volume."""

    def __init__(self, stem: int, stride: int, inflated: Sequence[Sequence[int]], *, pools_twice: bool) -> None:
        super().__init__()
        self.stem = unit(3, 64, (stem, 7, 7), (stride, 2, 2))
        self.pool = nn.MaxPool3d((1, 3, 3), (stride, 2, 2), (0, 1, 1))
        self.pool_again = nn.MaxPool3d((2, 1, 1), (2, 1, 1)) if pools_twice else nn.Identity()
        self.stages = nn.ModuleList(stages(DEPTHS[50], 3, inflated))
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(2048, 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if not number:
                x = self.pool_again(x)
        return self.head(self.dropout(functional.adaptive_avg_pool3d(x, 1)).flatten(1))


def tsn(batch_size: int = 32, frames: int = 3, depth: int = 50, classes: int = 400, many: bool = False) -> Any:
    """Temporal segment network: the features' mean over the frames; `many` classes may hold at once."""
    module = Frames(depth, frames, classes, 0.4, shifts=False)
    targets = torch.rand(batch_size, classes) if many else torch.randint(classes, (batch_size,))
    loss = functional.binary_cross_entropy_with_logits if many else functional.cross_entropy
    return module, (torch.randn(batch_size, frames, 3, PIXELS, PIXELS), targets), loss


def tsm(batch_size: int = 8, frames: int = 8) -> Any:
    """Temporal shift module in front of every block's first convolution."""
    module = Frames(50, frames, 400, 0.5, shifts=True)
    batch = torch.randn(batch_size, frames, 3, PIXELS, PIXELS), torch.randint(400, (batch_size,))
    return module, batch, functional.cross_entropy


def _volume(module: nn.Module, batch_size: int, frames: int) -> Any:
    batch = torch.randn(batch_size, 3, frames, PIXELS, PIXELS), torch.randint(400, (batch_size,))
    return module, batch, functional.cross_entropy


def i3d(batch_size: int = 8, frames: int = 32) -> Any:
    """Inflated ResNet-50."""
    inflated = ((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0))
    return _volume(Volume(5, 2, inflated, pools_twice=True), batch_size, frames)


def slow_only(batch_size: int = 8, frames: int = 4) -> Any:
    """The slow path of SlowFast alone: no stride over time, inflated in the last two stages."""
    return _volume(Volume(1, 1, ((0,), (0,), (1,), (1,)), pools_twice=False), batch_size, frames)


def c3d(batch_size: int = 30, frames: int = 16, classes: int = 101) -> Any:
    """C3D on clips of 112 pixels: eight convolutions over time and space, and two wide layers."""
    layers: list[nn.Module] = []
    inward = 3
    for widths, pool in (((64,), (1, 2, 2)), *(((width,) * number, (2, 2, 2)) for width, number in C3D)):
        for width in widths:
            layers += [nn.Conv3d(inward, width, 3, padding=1), nn.ReLU(inplace=True)]
            inward = width
        layers.append(nn.MaxPool3d(pool, pool))
    layers[-1].padding = (0, 1, 1)
    wide = ((nn.Linear(inward, 4096), nn.ReLU(), nn.Dropout()) for inward in (8192, 4096))
    module = nn.Sequential(*layers, nn.Flatten(), *chain.from_iterable(wide), nn.Linear(4096, classes))
    batch = torch.randn(batch_size, 3, frames, 112, 112), torch.randint(classes, (batch_size,))
    return module, batch, functional.cross_entropy
