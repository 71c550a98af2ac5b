"""Operators on inputs and gradients that are not contiguous, one at a time: for `just bench-layouts`."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, SIDE = 32, 64
LAYOUTS = {
    "in": "input transposed",
    "cut": "input cut",
    "grad": "gradient transposed",
    "sum": "gradient expanded",
}


def _indices(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=x.device)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2)


OPERATORS: dict[str, Any] = {  # of x (batch, features, side, side)
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: F.rms_norm(x, (x.shape[-1],)),
    "group_norm": lambda x: F.group_norm(x, 8),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": F.instance_norm,
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 4),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 4),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 2, stride=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=0.5),
    "grid": lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 16, 16, 2, device=x.device), align_corners=False),
    "var": lambda x: x.var(1),
    "norm": lambda x: x.norm(dim=1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "lse": lambda x: torch.logsumexp(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "amax": lambda x: x.amax(1),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(4, 1)[0],
    "gather": lambda x: x.gather(1, _indices(x, x.shape[0], 4, *x.shape[2:])),
    "matmul": lambda x: _flat(x).transpose(1, 2) @ _flat(x),
    "bmm": lambda x: torch.bmm(_flat(x), _flat(x).transpose(1, 2)),
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.2, device=x.device)),
    "leaky": F.leaky_relu,
    "silu": F.silu,
    "dropout": lambda x: F.dropout(x, 0.1),
    "dropout2d": lambda x: F.dropout2d(x, 0.1),
    "roll": lambda x: torch.roll(x, 2, 2),
    "flip": lambda x: x.flip(2),
    "pad": lambda x: F.pad(x, (1, 1)),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "cat": lambda x: torch.cat([x, x], 1),
    "index_select": lambda x: x.index_select(1, torch.arange(8, device=x.device)),
    "index": lambda x: x[:, torch.arange(8, device=x.device)],
    "cdist": lambda x: torch.cdist(_flat(x), _flat(x)),
    "lrn": lambda x: F.local_response_norm(x, 3),
    "hardswish": F.hardswish,
    "mish": F.mish,
    "elu": F.elu,
    "softplus": F.softplus,
    "std_mean": lambda x: torch.std_mean(x, 1)[0],
    "fft": lambda x: torch.fft.rfft(x).real,
    "cumprod": lambda x: x.cumprod(1),
    "stack": lambda x: torch.stack([x, x]),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
}


class Operator(nn.Module):
    """A convolution, whose result the operator gets in a layout, and a loss that gives it a gradient in one."""

    def __init__(self, op: str, layout: str) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, FEATURES, 1)
        self.op, self.layout = op, layout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)  # (batch, FEATURES, SIDE, SIDE)
        if self.layout == "in":
            x = x.transpose(2, 3)
        if self.layout == "cut":
            x = x[:, :, :-2]
        y: torch.Tensor = OPERATORS[self.op](x)
        if self.layout == "grad":
            y = y.transpose(1, 2)
        return y.sum() if self.layout == "sum" else (y * y).mean()


def make(op: str = "softmax", layout: str = "in", batch_size: int = 8) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the module and its batch, for gcprof and for the bare loop."""
    return Operator(op, layout), (torch.randn(batch_size, 4, SIDE, SIDE),)
