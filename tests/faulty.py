"""A model that does what no model should, to show what becomes of a trial then."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from profiler.training.workload import Workload

WIDTH = 8


def build(batch_size: int = 8, *, kind: str = "fine", at: Literal["forward", "recompute"] = "forward") -> Workload:
    """A small chain whose third block goes wrong in the way that is asked for: always, or only when recomputed.

    What can only go wrong in a recompute (dropout_norng, nograd) does so there.
    """
    block = _Faulty(kind, at)
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), block, nn.Linear(WIDTH, WIDTH)]
    batch = (torch.randn(batch_size, WIDTH), torch.randn(batch_size, WIDTH))  # both (batch, width)

    def loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        block.is_recompute = False
        found = F.mse_loss(module(batch[0]), batch[1])
        block.is_recompute = True  # whoever calls it before the next step
        return found

    return Workload(module=nn.Sequential(*blocks), blocks=("0", "1", "2", "3"), batch=batch, loss=loss)


class _Faulty(nn.Module):
    """Ends or spoils its process by `SUDDEN`, its output by `SPOILT`, or itself by what it is made of."""

    def __init__(self, kind: str, at: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.kind, self.at = kind, at
        self.is_recompute = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind in SUDDEN and (self.at == "forward" or self.is_recompute):
            SUDDEN[self.kind](self)
        x = x * self.scale  # (batch, width)
        return SPOILT[self.kind](self, x) if self.kind in SPOILT else x


def _device_memory(block: _Faulty) -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 1.50 GiB "
        "is free. Including non-PyTorch memory, this process has 138.20 GiB memory in use."
    )


def _spam(block: _Faulty) -> None:
    """Escapes, zeros, bytes that are no text, and what looks like a result: 4 MiB, once in a process."""
    if not _printed:
        sys.stdout.buffer.write(b'\x1b[31m{"record": 1}\x00\xff\n' * 2**18)
        sys.stdout.flush()
        _printed.append(True)


def _bad_result(block: _Faulty) -> None:
    """Writes nonsense to every descriptor that is open for writing."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'{"record": {"outcome": "ok"}}\n')
        except OSError:
            continue
    os._exit(0)


def _forget_gradient(block: _Faulty) -> None:
    """Before anything is computed: a recompute stops where it has what was saved."""
    if block.is_recompute:
        block.scale.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))


def _make_noise(block: _Faulty, x: torch.Tensor) -> torch.Tensor:
    """Another number every time, whatever the seed: small, as atomic adds on a GPU are."""
    generator = torch.Generator().manual_seed(time.time_ns())
    return x + 1e-4 * torch.randn(x.shape, generator=generator).to(x)


def _drop_otherwise(block: _Faulty, x: torch.Tensor) -> torch.Tensor:
    if block.is_recompute:
        torch.manual_seed(1234567)
    return F.dropout(x)


def _say(text: str, *more: object) -> None:
    print(text, *more, flush=True)


_printed: list[bool] = []
SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]
SUDDEN: dict[str, Callable[[_Faulty], Any]] = {
    "bad_result": _bad_result,
    "exit": lambda block: sys.exit(0),
    "exit0": lambda block: os._exit(0),
    "flags": lambda block: (torch.set_num_threads(3), setattr(torch.backends.cudnn, "benchmark", True)),
    "fork": lambda block: _say("offspring", subprocess.Popen(SLEEP).pid),
    "hang": lambda block: time.sleep(3600),
    "kill": lambda block: os.kill(os.getpid(), signal.SIGKILL),
    "nograd": _forget_gradient,
    "oom": _device_memory,
    "raise": lambda block: _say("planted") or [][0],
    "segv": lambda block: _say("planted: about to read at 0") or ctypes.string_at(0),
    "spam": _spam,
    "stubborn": lambda block: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(3600)),
}
SPOILT: dict[str, Callable[[_Faulty, torch.Tensor], torch.Tensor]] = {
    "index": lambda block, x: x[:, torch.full((1,), WIDTH, device=x.device)],  # an assert of the device's, on a GPU
    "dropout_norng": _drop_otherwise,
    "nan": lambda block, x: x * float("nan"),
    "noise": _make_noise,
}
