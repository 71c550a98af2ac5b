"""A model that does what no model should, to show what becomes of a trial then: knows nothing of who looks."""

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

from profiler.workload import Workload


def build(
    batch_size: int = 8,
    *,
    kind: Literal[
        "abort",
        "dropout",
        "exit",
        "garbage",
        "hang",
        "host-memory",
        "kill",
        "memory",
        "nan",
        "noise",
        "offspring",
        "quiet-exit",
        "raise",
        "segv",
        "spam",
        "stubborn",
    ],
) -> Workload:
    """A small chain whose third block fails in the way that is asked for, in its first forward."""
    blocks = [nn.Linear(8, 8), nn.Tanh(), _Faulty(kind), nn.Linear(8, 8)]
    module = nn.Sequential(*blocks)
    batch = (torch.randn(batch_size, 8), torch.randn(batch_size, 8))  # both (batch, 8)
    return Workload(module=module, blocks=tuple(str(i) for i in range(len(blocks))), batch=batch, loss=_loss)


class _Faulty(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self._fail = FAULTS[kind]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._fail()
        if self._fail is _dropout:
            return F.dropout(x)
        return x * float("nan") if self._fail is _nan else x + torch.randn_like(x)  # (batch, 8)


def _loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(module(x), y)


def _nan() -> None: ...
def _dropout() -> None: ...


def _noise() -> None:
    torch.manual_seed(time.time_ns())


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _hang() -> None:
    time.sleep(3600)


def _stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


def _raise() -> None:
    raise ValueError("planted: the third block does not like its input")


def _memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 1.00 GiB free.")


def _host_memory() -> None:
    torch.empty(10**15)


def _spam() -> None:
    sys.stdout.buffer.write(b'\x1b[31m{"record": 1}\x00\xff\n' * 200_000)
    sys.stdout.flush()


def _offspring() -> None:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    print("offspring", started.pid, flush=True)


def _garbage() -> None:
    """Writes nonsense to every descriptor that is open for writing."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'{"record": {"outcome": "ok"}}\n')
        except OSError:
            continue
    os._exit(0)


FAULTS: dict[str, Any] = {
    "abort": _signal(signal.SIGABRT),
    "dropout": _dropout,
    "exit": lambda: sys.exit(0),
    "garbage": _garbage,
    "hang": _hang,
    "host-memory": _host_memory,
    "kill": _signal(signal.SIGKILL),
    "memory": _memory,
    "nan": _nan,
    "noise": _noise,
    "offspring": _offspring,
    "quiet-exit": lambda: os._exit(0),
    "raise": _raise,
    "segv": lambda: ctypes.string_at(0),
    "spam": _spam,
    "stubborn": _stubborn,
}
