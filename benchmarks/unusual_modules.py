"""Modules of kinds that no built-in or library model has: plain PyTorch, for gcprof and for a bare loop alike.

`make(kind=...)` returns a chain of four like blocks between a stem and a head, its batch, and a loss.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NUM_BLOCKS = 4


class Block(nn.Module):
    """A block of these parts and tensors, whose forward is a function of the block and its input."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], parts: dict[str, Any]) -> None:
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
        self.blocks = nn.ModuleList(block() for _ in range(NUM_BLOCKS))
        self.is_checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        output: torch.Tensor = self.head(x)
        return output


def video(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Separate convolutions over space and time, as R(2+1)D has; of (batch, 32, frames, height, width)."""
    return x + F.relu(block.norm(block.time(F.relu(block.space(x)))))


def upsampling(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Half the size by a strided convolution, and back by a transposed one, with what was there before."""
    y = F.elu(block.up(F.leaky_relu(block.down(x), 0.2)))
    mixed: torch.Tensor = block.mix(torch.cat([x, y], dim=1))
    return mixed


def speech(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A linear layer along time, and norms of its transposed result, as in Conformer and wav2vec."""
    y = block.group(block.linear(x).transpose(1, 2))  # (batch, 256, time)
    y = block.batch(block.depthwise(F.silu(y)))
    return x + y.transpose(1, 2)


def gated(block: Any, x: torch.Tensor) -> torch.Tensor:
    """An RMS norm and a gated unit, whose halves are views of one product."""
    gate, value = block.up(block.norm(x)).chunk(2, dim=-1)
    return x + F.dropout(block.down(F.gelu(gate, approximate="tanh") * value), 0.1, block.training)


def experts(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Experts that all tokens go to, weighted by a softmax: batched products and an einsum."""
    weights = block.router(x).softmax(dim=-1)  # (batch, time, 4)
    hidden = F.silu(torch.einsum("btd,edh->ebth", x, block.up))
    each = torch.matmul(hidden, block.down.unsqueeze(1))  # (4, batch, time, 128)
    return x + torch.einsum("ebtd,bte->btd", each, weights)


def slots(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention written out, with a softmax over queries, as slot attention has."""
    query, key = block.project(x).chunk(2, dim=-1)
    weights = F.softmax(query @ key.transpose(1, 2), dim=1).transpose(1, 2)
    return x + weights / weights.sum(dim=-1, keepdim=True) @ x


def images(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Instance norm, reflected borders, pixels shuffled to a larger picture, and interpolation back."""
    y = block.convolve(F.pad(block.norm(x), (1, 1, 1, 1), mode="reflect"))
    y = block.slope(F.pixel_shuffle(y, 2))
    return x + F.interpolate(y, scale_factor=0.5, mode="bilinear")


def fourier(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Tokens mixed by a Fourier transform in fp32, as FNet does."""
    mixed = torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real.to(x.dtype)
    return x + F.mish(block.linear(block.norm(mixed)))


def scan(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A linear recurrence by cumulative sums, as state-space models have."""
    decay = F.logsigmoid(block.decay(x)).cumsum(dim=1)  # (batch, time, 128)
    state = decay.exp() * (block.inward(x) * torch.exp(-decay)).cumsum(dim=1)
    return x + block.outward(F.hardswish(state))


def cells(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A recurrent cell called step by step, of which the states are stacked."""
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
    """An unused branch, a buffer, weights shared by two calls, and a Function of the user's."""
    y = Squared.apply(block.linear(x))
    return x + F.normalize(block.linear(y), dim=-1) * block.scale


PARTS: dict[Any, Callable[[], dict[str, Any]]] = {
    video: lambda: {
        "space": nn.Conv3d(32, 32, (1, 3, 3), padding=(0, 1, 1)),
        "time": nn.Conv3d(32, 32, (3, 1, 1), padding=(1, 0, 0)),
        "norm": nn.BatchNorm3d(32),
    },
    upsampling: lambda: {
        "down": nn.Conv2d(32, 64, 4, stride=2, padding=1),
        "up": nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
        "mix": nn.Conv2d(64, 32, 1),
    },
    speech: lambda: {
        **{"linear": nn.Linear(256, 256), "group": nn.GroupNorm(8, 256), "batch": nn.BatchNorm1d(256)},
        "depthwise": nn.Conv1d(256, 256, 9, padding=4, groups=256),
    },
    gated: lambda: {"norm": nn.RMSNorm(256), "up": nn.Linear(256, 1536), "down": nn.Linear(768, 256)},
    experts: lambda: {
        "router": nn.Linear(128, 4),
        "up": nn.Parameter(torch.randn(4, 128, 256)),
        "down": nn.Parameter(torch.randn(4, 256, 128)),
    },
    slots: lambda: {"project": nn.Linear(128, 256)},
    images: lambda: {
        "norm": nn.InstanceNorm2d(32, affine=True), "convolve": nn.Conv2d(32, 128, 3), "slope": nn.PReLU(32)
    },
    fourier: lambda: {"norm": nn.LayerNorm(128), "linear": nn.Linear(128, 128)},
    scan: lambda: {name: nn.Linear(128, 128) for name in ("inward", "decay", "outward")},
    cells: lambda: {"cell": nn.GRUCell(128, 128)},
    function: lambda: {
        **{"linear": nn.Linear(128, 128, bias=False), "unused": nn.Linear(128, 128)},
        "scale": nn.Buffer(torch.ones(128)),
    },
}  # fmt: skip
PICTURES = {  # by kind: the block of a model of dense outputs, its convolutions, and the sizes of a picture
    "video": (video, nn.Conv3d, (3, 8, 32, 32)),
    "upsampling": (upsampling, nn.Conv2d, (3, 64, 64)),
    "images": (images, nn.Conv2d, (3, 64, 64)),
}
TOKENS = {  # by kind: the block of a language model, its width, the length of a text, whether logits are transposed
    "speech": (speech, 256, 512, False),
    "gated": (gated, 256, 128, True),
    "slots": (slots, 128, 128, True),
    "cells": (cells, 128, 16, False),
    "checkpointed": (gated, 256, 128, False),
    **{block.__name__: (block, 128, 128, False) for block in (experts, fourier, scan, function)},
}


def make(kind: str = "video", batch_size: int = 16) -> Any:
    """Return a module of this kind, its batch and its loss."""
    if kind in PICTURES:
        block, convolution, sizes = PICTURES[kind]
        batch = torch.randn(batch_size, *sizes), torch.randn(batch_size, 1, *sizes[1:])
        head, stem = convolution(32, 1, 1), convolution(3, 32, 1)  # in this order, which places them
        return Chain(stem, lambda: Block(block, PARTS[block]()), head), batch, F.mse_loss
    block, width, time, is_transposed = TOKENS[kind]

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if is_transposed:  # and cut, as many do
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    module = Chain(nn.Embedding(512, width), lambda: Block(block, PARTS[block]()), nn.Linear(width, 512))
    module.is_checkpointed = kind == "checkpointed"
    tokens = torch.randint(512, (batch_size, time))
    return module, (tokens, tokens.clone()), loss
