"""What each operator takes besides its outputs while it runs: knows nothing of cases or strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from profiler.measuring.devices import Device, Span
from profiler.measuring.op_signature import call_signature

Step = Callable[[Callable[[str], None]], Any]


def read(device: Device, step: Step) -> dict[str, Any]:
    """The field `hidden_bytes` of Readings, from the second of two steps: bytes by signature, where there are any.

    Convolutions take workspaces and copies of their inputs that no tensor shows.
    """
    with device.watch(0) as watch:
        step(lambda phase: None)
        calls = _Calls(watch.mark)
        with calls:
            step(lambda phase: None)
    hidden: dict[str, int] = {}
    for call, span in zip(calls.signatures, watch.spans()[::2], strict=True):  # every second span is between operators
        hidden[call] = max(hidden.get(call, 0), _hidden(span))
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


def _hidden(span: Span) -> int:
    return span.peak_bytes - max(span.start_bytes, span.end_bytes)
