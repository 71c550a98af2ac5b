"""The built-in models, and every classification model of torchvision and timm, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.training.workload import Workload

WIDTHS = (16, 32, 64)


def mlp(
    batch_size: int = 64, *, width: Count = 20, depth: Count = 3, features: Count = 10, classes: Count = 5
) -> Workload:
    """Linear layers with ReLU between; 10-20-20-5 unless told otherwise."""
    sizes = [features, *[width] * (depth - 1), classes]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    x = torch.randn(batch_size, features)  # (batch, features)
    y = torch.randint(classes, (batch_size,))  # (batch,)
    return Workload(module=module, blocks=tuple(str(i) for i in range(len(module))), batch=(x, y), loss=_classified)


def _classified(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], auxiliary: float = 0.0) -> torch.Tensor:
    """Return the cross entropy; auxiliary outputs add theirs, weighted."""
    inputs, labels = batch
    output: Any = module(inputs)
    main, *others = (output,) if isinstance(output, torch.Tensor) else (one for one in output if one is not None)
    loss = F.cross_entropy(main, labels)
    for logits in others:
        loss = loss + auxiliary * F.cross_entropy(logits, labels)
    return loss


def simple_mlp(batch_size: int = 64) -> Workload:
    """The three-layer perceptron 10-20-20-5, whose second block is the one to checkpoint."""
    module = nn.Sequential()
    for name, inputs in (("block1", 10), ("block2", 20)):
        module.add_module(name, nn.Sequential(nn.Linear(inputs, 20), nn.ReLU()))
    module.add_module("output", nn.Linear(20, 5))
    batch = (torch.randn(batch_size, 10), torch.randint(5, (batch_size,)))  # (batch, 10), (batch,)
    return Workload(module=module, blocks=("block1", "block2", "output"), batch=batch, loss=_classified)


class Dense(nn.Module):
    """A linear layer and tanh, whose backward needs only its output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))  # (batch, outputs)


def dense_chain(batch_size: int = 1, *, widths: str = "16+32", features: Count = 8) -> Workload:
    """Dense layers that save exactly their outputs, for arithmetic by hand: 16+32 is two, of widths 16 and 32.

    The linear part saves its input, which is the batch or the output of the layer before; tanh saves its own output;
    the sum that is the loss saves nothing. So a layer of width w saves 4 w bytes a sample in fp32: 16+32 at batch 1
    saves 64 + 128 = 192 bytes. The 4 bytes of the loss itself are live beside them, so that what the forward leaves
    live (`saved`) is 196. Raises Unsupported where the widths are no whole numbers from 1 joined by `+`.
    """
    words = widths.split("+")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise Unsupported(f"widths={widths} is not a list of whole numbers from 1, like 16+32")
    sizes = [features, *map(int, words)]
    module = nn.Sequential(*[Dense(inputs, outputs) for inputs, outputs in pairwise(sizes)])
    batch = torch.randn(batch_size, features)  # (batch, features)
    blocks = tuple(str(i) for i in range(len(module)))
    return Workload(module=module, blocks=blocks, batch=batch, loss=lambda module, batch: module(batch).sum())


class MnistCnn(nn.Module):
    """A trunk of convolutions that is one long chain, and two linear layers."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        trunk: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=2)]
        for _ in range(layers):
            trunk += [nn.Conv2d(channels, channels, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2, 2)]
        self.trunk = nn.Sequential(*trunk)
        self.head = nn.Sequential(nn.Linear(4 * channels, 10), nn.Linear(10, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.trunk(images)  # (batch, 1, 28, 28) -> (batch, channels, 2, 2)
        logits: torch.Tensor = self.head(features.flatten(1))  # (batch, 10)
        return logits


def mnist_cnn(
    batch_size: int = 64, data_directory: str | None = None, *, channels: Count = 320, layers: Count = 100
) -> Workload:
    """A very deep CNN on MNIST: `layers` times convolution, ReLU and pooling (301 blocks at 100 layers).

    With fewer than 5 layers the trunk does not shrink to the 2 x 2 that the head expects: Unsupported.
    """
    if layers < 5:
        raise Unsupported(f"mnist-cnn needs at least 5 layers to shrink 28 x 28 to 2 x 2, not {layers}")
    images, labels, data = read_batch(batch_size, data_directory)
    module = MnistCnn(channels, layers)
    blocks = tuple(f"trunk.{i}" for i in range(len(module.trunk)))
    return Workload(module=module, blocks=blocks, batch=(images, labels), loss=_classified, data=data)


def read_batch(batch_size: int, data_directory: str | None) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return images (batch, 1, 28, 28) in 0..1, labels (batch,), and "mnist" or "synthetic".

    `data_directory` holds the IDX files, or is torchvision's root with the files in MNIST/raw below it. Raises
    Unsupported if they are missing, or hold fewer than `batch_size` images. Nothing is ever downloaded.
    """
    if data_directory is None:
        return torch.rand(batch_size, 1, 28, 28), torch.randint(10, (batch_size,)), "synthetic"
    root = Path(data_directory)
    below = root / "MNIST" / "raw"
    from torchvision.datasets import MNIST  # noqa: PLC0415  takes a second to import, which only this needs

    class Files(MNIST):  # type: ignore[misc]  # torchvision has no annotations
        @property
        def raw_folder(self) -> str:
            return str(below if below.is_dir() else root)

    try:
        dataset = Files(data_directory, train=True, download=False)
    except RuntimeError as error:
        files = "train-images-idx3-ubyte and so on"  # the folder's name would go into the record
        raise Unsupported(f"no MNIST files ({files}) in the folder that --data names") from error
    if len(dataset) < batch_size:
        raise Unsupported(f"the MNIST files hold {len(dataset)} images, fewer than the batch of {batch_size}")
    images = dataset.data[:batch_size].unsqueeze(1).float() / 255
    return images, dataset.targets[:batch_size].clone(), "mnist"


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


def cifar_resnet(batch_size: int = 128, *, depth: Count = 3, classes: Count = 10) -> Workload:
    """The CIFAR-10 ResNet of 6n+2 layers; `depth` is n: 3, 7, 13, 19 are ResNet-20, 44, 80, 116.

    2n convolutions in each of three stages, one before them and the linear layer make 6n+2; two convolutions and a
    shortcut are a block, so there are 3n blocks. Images are 3 x 32 x 32. Source: He et al., Deep Residual Learning
    for Image Recognition, 2016, section 4.2 (shortcuts of kind A).
    """
    module = CifarResNet(depth, classes)
    images = torch.randn(batch_size, 3, 32, 32)
    labels = torch.randint(classes, (batch_size,))  # (batch,)
    blocks = tuple(f"stages.{stage}.{index}" for stage in range(len(WIDTHS)) for index in range(depth))
    return Workload(module=module, blocks=blocks, batch=(images, labels), loss=_classified)


class Block(nn.Module):
    """A pre-norm block: attention and a four times wider MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self._attend(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        attended: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return attended


class Transformer(nn.Module):
    """Embeddings of tokens and positions, the blocks, a norm, and an untied head."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]  # (batch, time, width)
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))  # (batch, time, vocabulary)
        return logits


def transformer(
    batch_size: int = 8,
    *,
    layers: Count = 6,
    width: Count = 128,
    heads: Count = 4,
    sequence: Count = 128,
    vocabulary: Count = 512,
    dropout: float = 0.1,
) -> Workload:
    """A GPT-like transformer: pre-norm, causal attention, GELU, an untied head; predicts the next token.

    Dropout acts on the embeddings and on what each half of a block adds, not within the attention. A block has
    12 width^2 + 13 width parameters. Raises Unsupported where the heads do not divide the width.
    """
    if width % heads:
        raise Unsupported(f"width={width} cannot be divided into {heads} heads")
    module = Transformer(layers, width, heads, sequence, vocabulary, dropout)
    tokens = torch.randint(vocabulary, (batch_size, sequence + 1))  # (batch, time + 1)
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())  # each predicts the next

    def loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten())

    return Workload(module=module, blocks=tuple(f"blocks.{i}" for i in range(layers)), batch=batch, loss=loss)


SIZES = {"inception_v3": 299}  # the others were made for 224
AUXILIARY = {"googlenet": 0.3, "inception_v3": 0.4}  # the weight of each auxiliary loss in the original training
OWN_SIZE = "own"


def torchvision(name: str, batch_size: int = 16, *, size: str = "own", classes: Count = 1000) -> Workload:
    """Any classification model of torchvision by its name, random weights; `size` is the images' side in pixels.

    GoogLeNet and Inception add their auxiliary losses, weighted 0.3 and 0.4. Vision transformers and MaxViT are built
    for the size that is asked for. Raises Unsupported for a name that torchvision does not have, and for a size that
    the model does not take.
    """
    from torchvision import models  # noqa: PLC0415  takes a second to import, which only this needs

    names = models.list_models(module=models)
    if name not in names:
        near = similar(name, names)
        instead = f"the nearest is '{near[0]}'" if near else f"it has {', '.join(names)}"
        raise Unsupported(f"torchvision has no classification model '{name}'; {instead}")
    own = SIZES.get(name, 224)
    pixels = side(size, own)

    particular: dict[str, Any] = {"image_size": pixels} if name.startswith("vit_") else {}
    if name in AUXILIARY:
        particular = {"init_weights": False}  # True takes seconds, and leaving it out warns
    if name.startswith("maxvit"):
        particular = {"input_size": (pixels, pixels)}
    shape = (batch_size, 3, pixels, pixels)
    make: Any = partial(models.get_model, name, weights=None, num_classes=classes, **particular)
    module = make() if pixels == own else _fitting(make, name, shape)
    return _image_workload(module, shape, classes, auxiliary=AUXILIARY.get(name, 0.0))


def timm(name: str, batch_size: int = 16, *, size: str = "own", classes: Count = 1000) -> Workload:
    """Any model of timm by its name, random weights, nothing downloaded; `size` is the images' side in pixels.

    Models of a fixed size are built for the size that is asked for. Raises Unsupported for a name that timm does not
    have, and for a size that the model does not take.
    """
    try:
        import timm as library  # noqa: PLC0415  it takes a second, and may not be installed
        from timm.models import PretrainedCfg  # noqa: PLC0415
    except ImportError:
        raise Unsupported("timm is not installed: pip install timm") from None
    if not library.is_model(name):
        near = similar(name, library.list_models())
        raise Unsupported(f"timm has no model '{name}'" + (f"; the nearest is '{near[0]}'" if near else ""))
    settings = library.get_pretrained_cfg(name, allow_unregistered=True) or PretrainedCfg()
    channels, own, _ = settings.input_size
    pixels = side(size, own)
    extra: dict[str, Any] = {"img_size": pixels} if settings.fixed_input_size and pixels != own else {}

    shape = (batch_size, channels, pixels, pixels)
    make: Any = partial(library.create_model, name, pretrained=False, num_classes=classes, **extra)
    return _image_workload(make() if pixels == own else _fitting(make, name, shape), shape, classes)


def side(word: str, own: int) -> int:
    """Return the images' side in pixels: the model's own, or as asked. Raises Unsupported if that is no number."""
    if word == OWN_SIZE:
        return own
    if not word.isascii() or not word.isdigit() or not int(word):
        raise Unsupported(f"size={word} is not a number of pixels; size={OWN_SIZE} is the model's own, {own}")
    return int(word)


def _fitting(make: Callable[[], nn.Module], name: str, shape: tuple[int, ...]) -> nn.Module:
    """Return the model. Raises Unsupported if it cannot be built for, or run on, images of this shape."""
    try:  # on the meta device, which costs neither memory nor time
        module = make().train()
        kept = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        shapes = {key: torch.empty_like(tensor, device="meta") for key, tensor in kept.items()}
        functional_call(module, shapes, torch.empty(shape, device="meta"))
    except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{name} does not take {shape[0]} images of {shape[2]} x {shape[3]}: {reason}") from None
    return module


def _image_workload(module: nn.Module, shape: tuple[int, ...], classes: int, *, auxiliary: float = 0.0) -> Workload:
    """Return a workload of random images and labels with cross entropy."""
    images = torch.randn(shape)  # (batch, channels, height, width)
    labels = torch.randint(classes, shape[:1])  # (batch,)
    return Workload(module=module, batch=(images, labels), loss=partial(_classified, auxiliary=auxiliary))
