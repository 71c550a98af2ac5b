"""Reads the bytes that operators use besides their outputs while they run, and formats call signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.measuring.devices import Device
from profiler.training.workload import Step


def read(device: Device, step: Step) -> dict[str, Any]:
    """Return the field `hidden_bytes` of Readings, read from the second of two steps: bytes by call signature.

    Convolutions take workspaces and copies of their inputs that no tensor shows.
    """
    with device.watch(0) as watch:
        step(lambda phase: None)
        calls = _Calls(watch.mark)
        with calls:
            step(lambda phase: None)
    hidden: dict[str, int] = {}
    for call, span in zip(calls.signatures, watch.spans()[::2], strict=True):  # every second span is between operators
        nbytes = span.peak_bytes - max(span.start_bytes, span.end_bytes)
        hidden[call] = max(hidden.get(call, 0), nbytes)
    return {"hidden_bytes": {call: nbytes for call, nbytes in hidden.items() if nbytes}}


class _Calls(TorchDispatchMode):
    """Marks the beginning and the end of every operator."""

    def __init__(self, mark: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.signatures: list[str] = []
        self._mark = mark

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.signatures.append(call_signature(func, args, kwargs))
        self._mark()
        out = func(*args, **(kwargs or {}))
        self._mark()
        return out


def call_signature(operator: Any, arguments: Any, keywords: Any) -> str:
    """Return a call's signature, equal for calls that do equal work: `aten.mm(float32[2, 3], float32[3, 4])`."""
    words = [_word(value) for value in arguments] + [f"{key}={_word(value)}" for key, value in (keywords or {}).items()]
    return f"{operator_name(operator)}({', '.join(words)})"


def operator_name(operator: Any) -> str:
    """Return an operator's name with its overload, unless that is the default: `aten.add.Tensor`, `aten.mm`."""
    return str(operator).removesuffix(".default")


def _word(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f" by {list(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_word(item) for item in value)}]"
    return str(value)
