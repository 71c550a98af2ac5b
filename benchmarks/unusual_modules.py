"""Modules of kinds that no built-in or library model has: plain PyTorch, for gcprof and for a bare loop alike.

`make(kind=...)` returns a chain of four like blocks between a stem and a head, its batch, and a loss.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A block of these parts and tensors, whose forward is a function of the block and its input."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


class Chain(nn.Module):
    """A stem, blocks that feed each other, and a head; with `is_checkpointed` it checkpoints its blocks itself."""

    def __init__(self, stem: nn.Module, block: Callable[[], nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.head = stem, head
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.is_checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return self.head(x)


def images(block: Any, x: torch.Tensor) -> torch.Tensor:
    y = block.convolve(F.pad(block.norm(x), (1, 1, 1, 1), mode="reflect"))
    y = block.slope(F.pixel_shuffle(y, 2))
    return x + F.interpolate(y, scale_factor=0.5, mode="bilinear")


def speech(block: Any, x: torch.Tensor) -> torch.Tensor:
    y = block.group(block.linear(x).transpose(1, 2))  # (batch, 256, time)
    y = block.batch(block.depthwise(F.silu(y)))
    return x + y.transpose(1, 2)


def gated(block: Any, x: torch.Tensor) -> torch.Tensor:
    gate, value = block.up(block.norm(x)).chunk(2, dim=-1)
    return x + F.dropout(block.down(F.gelu(gate, approximate="tanh") * value), 0.1, block.training)


def experts(block: Any, x: torch.Tensor) -> torch.Tensor:
    weights = block.router(x).softmax(dim=-1)  # (batch, time, 4)
    hidden = F.silu(torch.einsum("btd,edh->ebth", x, block.up))
    each = torch.matmul(hidden, block.down.unsqueeze(1))  # (4, batch, time, 128)
    return x + torch.einsum("ebtd,bte->btd", each, weights)


def slots(block: Any, x: torch.Tensor) -> torch.Tensor:
    query, key = block.project(x).chunk(2, dim=-1)
    weights = F.softmax(query @ key.transpose(1, 2), dim=1).transpose(1, 2)
    return x + weights / weights.sum(dim=-1, keepdim=True) @ x


def fourier(block: Any, x: torch.Tensor) -> torch.Tensor:
    mixed = torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real.to(x.dtype)
    return x + F.mish(block.linear(block.norm(mixed)))


def scan(block: Any, x: torch.Tensor) -> torch.Tensor:
    decay = F.logsigmoid(block.decay(x)).cumsum(dim=1)  # (batch, time, 128)
    state = decay.exp() * (block.inward(x) * torch.exp(-decay)).cumsum(dim=1)
    return x + block.outward(F.hardswish(state))


def cells(block: Any, x: torch.Tensor) -> torch.Tensor:
    state, states = x[:, 0], []
    for step in x.unbind(dim=1):
        state = block.cell(step, state)
        states.append(state)
    return x + torch.stack(states, dim=1)


class Squared(torch.autograd.Function):
    """A user's own function with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * gradients[0] * x.relu()


def function(block: Any, x: torch.Tensor) -> torch.Tensor:
    y = Squared.apply(block.linear(x))
    return x + F.normalize(block.linear(y), dim=-1) * block.scale


BLOCKS: dict[str, Callable[[], Block]] = {
    "video": lambda: Block(  # separate convolutions over space and time, as R(2+1)D has
        lambda block, x: x + F.relu(block.norm(block.time(F.relu(block.space(x))))),  # (batch, 32, time, height, width)
        space=nn.Conv3d(32, 32, (1, 3, 3), padding=(0, 1, 1)),
        time=nn.Conv3d(32, 32, (3, 1, 1), padding=(1, 0, 0)),
        norm=nn.BatchNorm3d(32),
    ),
    "upsampling": lambda: Block(  # half the size by a strided convolution, and back, with what was there before
        lambda block, x: block.mix(torch.cat([x, F.elu(block.up(F.leaky_relu(block.down(x), 0.2)))], dim=1)),
        down=nn.Conv2d(32, 64, 4, stride=2, padding=1),
        up=nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), mix=nn.Conv2d(64, 32, 1),
    ),
    "images": lambda: Block(  # reflected borders, pixels shuffled to a larger picture, and interpolation back
        images, norm=nn.InstanceNorm2d(32, affine=True), convolve=nn.Conv2d(32, 128, 3), slope=nn.PReLU(32),
    ),
    "speech": lambda: Block(  # a linear layer along time, norms of its transposed result, as in Conformer and wav2vec
        speech, linear=nn.Linear(256, 256), group=nn.GroupNorm(8, 256), batch=nn.BatchNorm1d(256),
        depthwise=nn.Conv1d(256, 256, 9, padding=4, groups=256),
    ),
    "gated": lambda: Block(  # an RMS norm and a gated unit, whose halves are views of one product
        gated, norm=nn.RMSNorm(256), up=nn.Linear(256, 1536), down=nn.Linear(768, 256)
    ),
    "experts": lambda: Block(  # that all tokens go to, weighted by a softmax: batched products and an einsum
        experts, router=nn.Linear(128, 4), up=nn.Parameter(torch.randn(4, 128, 256)),
        down=nn.Parameter(torch.randn(4, 256, 128)),
    ),
    "slots": lambda: Block(slots, project=nn.Linear(128, 256)),  # slot attention: a softmax over queries
    "fourier": lambda: Block(  # tokens mixed by a Fourier transform in fp32, as FNet does
        fourier, norm=nn.LayerNorm(128), linear=nn.Linear(128, 128)
    ),
    # a linear recurrence by cumulative sums, as state-space models have
    "scan": lambda: Block(scan, **{name: nn.Linear(128, 128) for name in ("inward", "decay", "outward")}),
    "cells": lambda: Block(cells, cell=nn.GRUCell(128, 128)),  # a cell called step by step, its states stacked
    "function": lambda: Block(  # an unused branch, a buffer, weights shared by two calls, and a Function of the user's
        function, linear=nn.Linear(128, 128, bias=False), unused=nn.Linear(128, 128), scale=nn.Buffer(torch.ones(128))
    ),
}  # fmt: skip
PICTURES = {  # by kind: the convolutions of a model of dense outputs, and the sizes of a picture
    "video": (nn.Conv3d, (3, 8, 32, 32)), "upsampling": (nn.Conv2d, (3, 64, 64)), "images": (nn.Conv2d, (3, 64, 64)),
}  # fmt: skip
TOKENS = {  # by kind: the width of a language model and the length of a text, unless both are 128
    "speech": (256, 512), "gated": (256, 128), "checkpointed": (256, 128), "cells": (128, 16)
}  # fmt: skip


def make(kind: str = "video", batch_size: int = 16) -> Any:
    """Return a module of this kind, its batch and its loss."""
    block = BLOCKS["gated" if kind == "checkpointed" else kind]
    if kind in PICTURES:
        convolution, sizes = PICTURES[kind]
        batch = torch.randn(batch_size, *sizes), torch.randn(batch_size, 1, *sizes[1:])
        head, stem = convolution(32, 1, 1), convolution(3, 32, 1)  # in this order, which places them
        return Chain(stem, block, head), batch, F.mse_loss
    width, time = TOKENS.get(kind, (128, 128))

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if kind in ("gated", "slots"):  # cut and transposed, as many do
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    module = Chain(nn.Embedding(512, width), block, nn.Linear(width, 512))
    module.is_checkpointed = kind == "checkpointed"
    tokens = torch.randint(512, (batch_size, time))
    return module, (tokens, tokens.clone()), loss
