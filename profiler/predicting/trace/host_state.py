"""Tells apart what an optimizer keeps on the host, such as Adam's step count.

All tensors of a prediction are on the CPU, also those that stand for a device's. The optimizer's state is the host's
where it is made without a device or on "cpu" by name; the device's is made on the device of a parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

SUPPORTED = "_get_capturable_supported_devices"
FACTORIES = {torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.zeros, torch.ones, torch.empty, torch.full}


@contextmanager
def host_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Make the optimizer's steps mark what they create on the host, and accept `capturable` as on CUDA."""
    with entered_in_steps(optimizer, [HostMarking()]), ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, SUPPORTED):
                stack.enter_context(mock.patch.object(module, SUPPORTED, _as_cuda))
        yield


@contextmanager
def entered_in_steps(optimizer: torch.optim.Optimizer, modes: Sequence[Any]) -> Iterator[None]:
    """Enter the modes whenever the optimizer steps."""

    def enter(*given: Any) -> None:
        for mode in modes:
            mode.__enter__()

    def leave(*given: Any) -> None:
        for mode in modes:
            mode.__exit__(None, None, None)

    before, after = optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the tensor was made on the host under `HostMarking`."""
    return getattr(tensor, "is_on_host", False)


class HostMarking(TorchFunctionMode):
    """Marks the tensors that are made on the host while it is entered."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        options = keywords or {}
        tensor = function(*arguments, **options)
        if function in FACTORIES and options.get("device") in (None, "cpu"):
            tensor.is_on_host = True
        return tensor


def _as_cuda(*given: Any, **named: Any) -> list[str]:
    """The devices that `capturable` supports: the CPU, whose tensors stand for CUDA's here."""
    return ["cpu"]
