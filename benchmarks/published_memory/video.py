"""Video recognition as MMAction2 trains it: ResNets over frames, inflated ResNets, C3D."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchvision.models.resnet import Bottleneck, ResNet

DEPTHS = {50: [3, 4, 6, 3], 101: [3, 4, 23, 3]}
# channels out of each convolution, and the pooling after it
C3D = ((64, (1, 2, 2)), (128, 2), (256, 0), (256, 2), (512, 0), (512, 2), (512, 0), (512, 2))
PIXELS = 224


class Block(Bottleneck):
    """The bottleneck of torchvision, with a sum that is not in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        return self.relu(out + (self.downsample(x) if self.downsample else x))


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


class Frames(nn.Module):
    """A ResNet over all frames as one batch; the scores' or the features' mean over the frames of a clip."""

    def __init__(self, depth: int, frames: int, classes: int, *, shifts: bool) -> None:
        super().__init__()
        self.network = ResNet(Block, DEPTHS[depth], num_classes=classes)
        head, self.network.fc = self.network.fc, nn.Identity()
        for block in self.network.modules():
            if shifts and isinstance(block, Block):
                block.conv1 = Shift(block.conv1, frames)
        self.dropout, self.head, self.frames, self.shifts = nn.Dropout(0.5 if shifts else 0.4), head, frames, shifts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.network(x.flatten(0, 1))
        if self.shifts:
            return self.head(self.dropout(x)).unflatten(0, (-1, self.frames)).mean(1)
        return self.head(self.dropout(x.unflatten(0, (-1, self.frames)).mean(1)))


def volume(stem: int, stride: int, inflated: Sequence[Sequence[int]]) -> ResNet:
    """A ResNet-50 over the clip as a volume; `inflated`: by stage, whose first convolutions are of three frames."""
    with torch.device("meta"):  # all that has weights is replaced
        network = ResNet(Block, DEPTHS[50])
    sizes = {"conv1": (stem, stride)}
    for number, (of_blocks, depth) in enumerate(zip(inflated, DEPTHS[50], strict=True), start=1):
        sizes |= {f"layer{number}.{at}.conv1": (3 if of_blocks[at % len(of_blocks)] else 1, 1) for at in range(depth)}
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d):
            time, step = sizes.get(name, (1, 1))
            shapes = (time, *module.kernel_size), (step, *module.stride), (time // 2, *module.padding)
            network.set_submodule(name, nn.Conv3d(module.in_channels, module.out_channels, *shapes, bias=False))
        elif isinstance(module, nn.BatchNorm2d):
            network.set_submodule(name, nn.BatchNorm3d(module.num_features))
    network.maxpool = nn.MaxPool3d((1, 3, 3), (stride, 2, 2), (0, 1, 1))
    network.avgpool, network.fc = nn.AdaptiveAvgPool3d(1), nn.Sequential(nn.Dropout(0.5), nn.Linear(2048, 400))
    return network


def clips(module: nn.Module, batch_size: int, *shape: int, classes: int = 400, many: bool = False) -> Any:
    """Return the module, clips of a shape, and the loss; `many` classes may hold at once."""
    targets = torch.rand(batch_size, classes) if many else torch.randint(classes, (batch_size,))
    loss = functional.binary_cross_entropy_with_logits if many else functional.cross_entropy
    return module, (torch.randn(batch_size, *shape), targets), loss


def tsn(
    batch_size: int = 32, frames: int = 3, depth: int = 50, classes: int = 400, many: bool = False, shifts: bool = False
) -> Any:
    """Temporal segment network, with shifts a temporal shift module before every block's first convolution."""
    module = Frames(depth, frames, classes, shifts=shifts)
    return clips(module, batch_size, frames, 3, PIXELS, PIXELS, classes=classes, many=many)


def i3d(batch_size: int = 8, frames: int = 32) -> Any:
    """Inflated ResNet-50."""
    network = volume(5, 2, ((1,), (1, 0), (1, 0), (0, 1)))
    network.layer1.append(nn.MaxPool3d((2, 1, 1), (2, 1, 1)))
    return clips(network, batch_size, 3, frames, PIXELS, PIXELS)


def slow_only(batch_size: int = 8, frames: int = 4) -> Any:
    """The slow path of SlowFast alone: no stride over time, inflated in the last two stages."""
    return clips(volume(1, 1, ((0,), (0,), (1,), (1,))), batch_size, 3, frames, PIXELS, PIXELS)


def c3d(batch_size: int = 30, frames: int = 16, classes: int = 101) -> Any:
    """C3D on clips of 112 pixels: eight convolutions over time and space, and two wide layers."""
    layers: list[nn.Module] = []
    for (inward, _), (width, pool) in pairwise([(3, 0), *C3D]):
        layers += [nn.Conv3d(inward, width, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool3d(pool, pool)] if pool else []
    layers[-1].padding = (0, 1, 1)
    wide = ((nn.Linear(inward, 4096), nn.ReLU(), nn.Dropout()) for inward in (8192, 4096))
    module = nn.Sequential(*layers, nn.Flatten(), *chain.from_iterable(wide), nn.Linear(4096, classes))
    return clips(module, batch_size, 3, frames, 112, 112, classes=classes)
