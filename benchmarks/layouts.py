"""Operators on inputs and gradients that are not contiguous, one at a time: for `just bench-layouts`."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, SIDE = 32, 64
LAYOUTS = {"in": "input transposed", "cut": "input cut", "grad": "gradient transposed", "sum": "gradient expanded"}
ALONE = "instance_norm leaky_relu silu hardswish mish elu softplus"  # functions of x alone
REDUCED = "var norm logsumexp cumsum cumprod amax"  # functions of x along its features
AFTER = {  # functions of x and what is given
    "softmax log_softmax normalize": {"dim": 1},
    "group_norm": {"num_groups": 8},
    "batch_norm": {"running_mean": None, "running_var": None, "training": True},
    "max_pool2d avg_pool2d": {"kernel_size": 2},
    "adaptive_avg_pool2d adaptive_max_pool2d": {"output_size": 4},
    "pixel_shuffle": {"upscale_factor": 2},
    "unfold": {"kernel_size": 2, "stride": 2},
    "dropout dropout2d": {"p": 0.1},
    "local_response_norm": {"size": 3},
}
OPERATORS: dict[str, Any] = {  # of x (batch, features, side, side)
    **{name: getattr(F, name) for name in ALONE.split()},
    **{name: partial(getattr(F, name), **given) for names, given in AFTER.items() for name in names.split()},
    **{name: partial(getattr(torch, name), dim=1) for name in REDUCED.split()},
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: F.rms_norm(x, (x.shape[-1],)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=0.5),
    "grid": lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 16, 16, 2, device=x.device), align_corners=False),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(4, 1)[0],
    "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 4, *x.shape[2:], dtype=torch.long, device=x.device)),
    "matmul": lambda x: x.flatten(2).transpose(1, 2) @ x.flatten(2),
    "bmm": lambda x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.2, device=x.device)),
    "roll": lambda x: torch.roll(x, 2, 2),
    "flip": lambda x: x.flip(2),
    "pad": lambda x: F.pad(x, (1, 1)),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "cat": lambda x: torch.cat([x, x], 1),
    "index_select": lambda x: x.index_select(1, torch.arange(8, device=x.device)),
    "index": lambda x: x[:, torch.arange(8, device=x.device)],
    "cdist": lambda x: torch.cdist(x.flatten(2), x.flatten(2)),
    "std_mean": lambda x: torch.std_mean(x, 1)[0],
    "fft": lambda x: torch.fft.rfft(x).real,
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
