"""What an optimizer keeps on the host beside a device's parameters, as Adam its count of steps: knows nothing of steps.

A prediction's tensors are all on the CPU, also those that stand for a device's. What is the host's is told by how it is
made: without a device, or on "cpu" by name, where what is the device's is made on the parameter's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

SUPPORTED = "_get_capturable_supported_devices"
FACTORIES = {torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.zeros, torch.ones, torch.empty, torch.full}


@contextmanager
def host_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it, the optimizer's steps mark what they make on the host, and `capturable` is taken as CUDA takes it."""
    mode = Marking()

    def enter(*given: Any) -> None:
        mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(*given: Any) -> None:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    before, after = optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)
    try:
        with ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith("torch.optim.") and hasattr(module, SUPPORTED):
                    stack.enter_context(mock.patch.object(module, SUPPORTED, _as_cuda))
            yield
    finally:
        before.remove()
        after.remove()


def is_on_host(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "is_on_host", False)


class Marking(TorchFunctionMode):
    """Marks what is made on the host while it is entered, as by an optimizer that is built."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        named = keywords or {}
        made = function(*arguments, **named)
        if function in FACTORIES and named.get("device") in (None, "cpu"):
            made.is_on_host = True
        return made


def _as_cuda(*given: Any, **named: Any) -> list[str]:
    """The devices on which steps may be counted: here the CPU's tensors stand for CUDA's."""
    return ["cpu"]
