"""Modules of kinds that no built-in or library model has: plain PyTorch, for gcprof and for a bare loop alike.

`make(kind=...)` returns a chain of four like blocks between a stem and a head, its batch, and a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, NUM_BLOCKS = 64, 4


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


class Video(nn.Module):
    """Separate convolutions over space and time, as R(2+1)D has."""

    def __init__(self) -> None:
        super().__init__()
        self.space = nn.Conv3d(32, 32, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(32, 32, (3, 1, 1), padding=(1, 0, 0))
        self.norm = nn.BatchNorm3d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.time(F.relu(self.space(x)))))  # (batch, 32, frames, height, width)


class Upsampling(nn.Module):
    """Half the size by a strided convolution, and back by a transposed one, with what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(32, 64, 4, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        self.mix = nn.Conv2d(64, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.elu(self.up(F.leaky_relu(self.down(x), 0.2)))
        mixed: torch.Tensor = self.mix(torch.cat([x, y], dim=1))
        return mixed


class Speech(nn.Module):
    """A linear layer along time, and norms of its transposed result, as in Conformer and wav2vec."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.group, self.batch = nn.Linear(256, 256), nn.GroupNorm(8, 256), nn.BatchNorm1d(256)
        self.depthwise = nn.Conv1d(256, 256, 9, padding=4, groups=256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.group(self.linear(x).transpose(1, 2))  # (batch, 256, time)
        y = self.batch(self.depthwise(F.silu(y)))
        return x + y.transpose(1, 2)


class Gated(nn.Module):
    """An RMS norm and a gated unit, whose halves are views of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(256), nn.Linear(256, 1536), nn.Linear(768, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + F.dropout(self.down(F.gelu(gate, approximate="tanh") * value), 0.1, self.training)


class Experts(nn.Module):
    """Experts that all tokens go to, weighted by a softmax: batched products and an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(128, 4)
        self.up = nn.Parameter(torch.randn(4, 128, 256))
        self.down = nn.Parameter(torch.randn(4, 256, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(dim=-1)  # (batch, time, 4)
        hidden = F.silu(torch.einsum("btd,edh->ebth", x, self.up))
        each = torch.matmul(hidden, self.down.unsqueeze(1))  # (4, batch, time, 128)
        return x + torch.einsum("ebtd,bte->btd", each, weights)


class Slots(nn.Module):
    """Attention written out, with a softmax over queries, as slot attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(128, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = self.project(x).chunk(2, dim=-1)
        weights = F.softmax(query @ key.transpose(1, 2), dim=1).transpose(1, 2)
        return x + weights / weights.sum(dim=-1, keepdim=True) @ x


class Images(nn.Module):
    """Instance norm, reflected borders, pixels shuffled to a larger picture, and interpolation back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.convolve = nn.InstanceNorm2d(32, affine=True), nn.Conv2d(32, 128, 3)
        self.slope = nn.PReLU(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolve(F.pad(self.norm(x), (1, 1, 1, 1), mode="reflect"))
        y = self.slope(F.pixel_shuffle(y, 2))
        return x + F.interpolate(y, scale_factor=0.5, mode="bilinear")


class Fourier(nn.Module):
    """Tokens mixed by a Fourier transform in fp32, as FNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real.to(x.dtype)
        return x + F.mish(self.linear(self.norm(mixed)))


class Scan(nn.Module):
    """A linear recurrence by cumulative sums, as state-space models have."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.decay, self.outward = nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decay = F.logsigmoid(self.decay(x)).cumsum(dim=1)  # (batch, time, 128)
        state = decay.exp() * (self.inward(x) * torch.exp(-decay)).cumsum(dim=1)
        return x + self.outward(F.hardswish(state))


class Cells(nn.Module):
    """A recurrent cell called step by step, of which the states are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = x[:, 0], []
        for step in x.unbind(dim=1):
            state = self.cell(step, state)
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


class Function(nn.Module):
    """An unused branch, a buffer, weights shared by two calls, and a Function of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(128, 128, bias=False), nn.Linear(128, 128)
        self.register_buffer("scale", torch.ones(128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = Squared.apply(self.linear(x))
        return x + F.normalize(self.linear(y), dim=-1) * self.scale


def _tokens(block: Callable[[], nn.Module], width: int, *, time: int = 128, transposed: bool = False) -> Any:
    """A language model of these blocks; its loss takes transposed and cut logits where `transposed`, as many do."""

    def make(batch_size: int) -> Any:
        def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if transposed:
                return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:])
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        module = Chain(nn.Embedding(512, width), block, nn.Linear(width, 512))
        tokens = torch.randint(512, (batch_size, time))
        return module, (tokens, tokens.clone()), loss

    return make


def _pictures(block: Callable[[], nn.Module], stem: nn.Module, *shape: int) -> Any:
    """A model of dense outputs: a value for each pixel, and its squared error."""

    def make(batch_size: int) -> Any:
        head = nn.Conv3d(32, 1, 1) if len(shape) == 4 else nn.Conv2d(32, 1, 1)
        images = torch.randn(batch_size, *shape)
        return Chain(stem, block, head), (images, torch.randn(batch_size, 1, *shape[1:])), F.mse_loss

    return make


def make(kind: str = "video", batch_size: int = 16) -> Any:
    """Return a module of this kind, its batch and its loss."""
    makers = {
        "video": lambda: _pictures(Video, nn.Conv3d(3, 32, 1), 3, 8, 32, 32),
        "upsampling": lambda: _pictures(Upsampling, nn.Conv2d(3, 32, 1), 3, 64, 64),
        "images": lambda: _pictures(Images, nn.Conv2d(3, 32, 1), 3, 64, 64),
        "speech": lambda: _tokens(Speech, 256, time=512),
        "gated": lambda: _tokens(Gated, 256, transposed=True),
        "experts": lambda: _tokens(Experts, 128),
        "slots": lambda: _tokens(Slots, 128, transposed=True),
        "fourier": lambda: _tokens(Fourier, 128),
        "scan": lambda: _tokens(Scan, 128),
        "cells": lambda: _tokens(Cells, 128, time=16),
        "function": lambda: _tokens(Function, 128),
        "checkpointed": lambda: _tokens(Gated, 256),
    }
    module, batch, loss = makers[kind]()(batch_size)
    module.is_checkpointed = kind == "checkpointed"
    return module, batch, loss
