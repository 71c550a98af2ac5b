"""Reads what the operators of a step do: FLOPs, bytes read and written, and bytes besides their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from profiler.core.trace_data import Operator
from profiler.measuring.devices import Device
from profiler.measuring.meters import FORMULAS as ATTENTION
from profiler.training.workload import Step

COPIES = ("aten.copy_", "aten._to_copy")
KERNELS = "triton.runtime.jit"
Look = Callable[[torch.Tensor], None]  # is called with the loss before the backward


def _formulas() -> Any:
    """Return PyTorch's FLOP formulas by operator, importing their module without triton unless it is there already."""
    is_late = KERNELS not in sys.modules and find_spec("triton") is not None
    if is_late:  # the module needs only its type of user-written kernels, and its import takes 0.1 s
        kernels = sys.modules[KERNELS] = ModuleType(KERNELS)
        vars(kernels).update(JITFunction=_LateKernel("JITFunction", (), {}))
    try:
        return import_module("torch.utils.flop_counter").flop_registry
    finally:
        if is_late:
            del sys.modules[KERNELS]


class _LateKernel(type):
    """Metaclass of a stand-in for triton's JITFunction: has the real class's instances once triton is imported."""

    def __instancecheck__(cls, value: object) -> bool:
        real = getattr(sys.modules.get(KERNELS), "JITFunction", cls)
        return real is not cls and isinstance(value, real)


_FORMULAS = _formulas()


class Kind:
    """The properties of an operator that are the same for every call."""

    __slots__ = ("flops", "is_question", "is_view", "name")

    def __init__(self, func: Any) -> None:
        packet = getattr(func, "_overloadpacket", func)  # a higher-order operator has no overloads
        self.name = operator_name(func)
        formula = ATTENTION.get(packet) or _FORMULAS.get(packet)
        self.flops = formula and _of_shapes(formula)
        self.is_question = func.namespace in ("prim", "profiler")  # about a fake tensor's device; or a mark
        self.is_view = bool(getattr(func, "is_view", False)) or self.name == "aten.detach"

    def work(self, args: Any, kwargs: Any, out: Any) -> tuple[int, int]:
        """Return the FLOPs of a call, and the bytes that it reads and writes."""
        flops = self.flops(args, kwargs, out) if self.flops else 0
        return flops, 0 if self.is_view else _nbytes(args) + _nbytes(out)


kind_of = cache(Kind)


def _of_shapes(formula: Any) -> Callable[[Any, Any, Any], int]:
    """Return a formula as a function of a call's arguments and result, without PyTorch's slow mapping to shapes."""
    by_shape = getattr(formula, "__wrapped__", None)
    if by_shape is None or getattr(formula, "_get_raw", False):
        return lambda args, kwargs, out: int(formula(*args, **kwargs, out_val=out))
    return lambda args, kwargs, out: int(
        by_shape(*map(_shape, args), out_shape=_shape(out), **{key: _shape(value) for key, value in kwargs.items()})
    )


def _shape(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.shape
    return type(tree)(map(_shape, tree)) if type(tree) in (tuple, list) else tree


def _nbytes(tree: Any) -> int:
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.itemsize
    return sum(map(_nbytes, tree)) if isinstance(tree, (tuple, list)) else 0


def copied_bytes(name: str, args: Any, out: Any) -> int:
    """Return the bytes that an operator copies from the device to the host, or back; numbers do not count."""
    if not name.startswith(COPIES) or not isinstance(out, torch.Tensor) or not out.dim():
        return 0
    source = args[name.startswith("aten.copy_")]
    return _nbytes(out) if isinstance(source, torch.Tensor) and source.is_cuda != out.is_cuda else 0


class Counted(TorchDispatchMode):
    """Dispatch mode that notes every operator of a step, by phase."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phases: list[tuple[str, list[Operator]]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # it sees what compiled code runs, not how it is compiled

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self.phases.append((phase, []))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, kind_of(func)
        if not kind.flops and torch.is_inference_mode_enabled() and hasattr(func, "decompose"):
            with self:  # such operators are whole here; autograd takes them apart
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if not kind.is_question:
            phase, operators = self.phases[-1]
            copied = copied_bytes(kind.name, args, out)
            is_beside = copied > 0 and torch.cuda.current_stream() != torch.cuda.default_stream()
            work = kind.work(args, kwargs, out)
            operators.append(Operator(kind.name, "", phase, *work, host_bytes=copied, is_beside=is_beside))
        return out

    @property
    def operators(self) -> list[Operator]:
        return [operator for _, operators in self.phases for operator in operators]

    def readings(self) -> dict[str, Any]:
        """Return the FLOP fields of Readings, of the first forward and the first backward, recompute included."""
        first = dict(reversed(self.phases))
        return {f"{name}_flops": sum(one.flops for one in first[name]) for name in ("forward", "backward")}


def count(
    step: Callable[..., torch.Tensor],
    look: Look = lambda loss: None,
    gradients: AbstractContextManager[Any] | None = None,
) -> Counted:
    """Return what the operators of a training step do; its forwards and backwards run within `gradients`.

    FLOPs are those of matrix products, convolutions and attention, as torch.utils.flop_counter counts them; the
    recompute counts as backward.
    """
    counted = Counted()
    with counted, ExitStack() as watching:

        def mark(phase: str) -> None:
            counted.mark(phase)
            if phase == "zero" and gradients:
                watching.enter_context(gradients)
            if phase == "optimizer":
                watching.close()

        def look_only(loss: torch.Tensor) -> None:
            with _disable_current_modes():
                look(loss)

        step(mark=mark, look=look_only)
    return counted


def hidden_bytes(device: Device, step: Step) -> dict[str, Any]:
    """Return the field `hidden_bytes` of Readings, read from the second of two steps: bytes by call signature.

    Convolutions take workspaces and copies of their inputs that no tensor shows.
    """
    signatures: list[str] = []
    with device.watch(0) as watch:
        step(lambda phase: None)
        with _Calls(signatures, watch.mark):
            step(lambda phase: None)
    hidden: dict[str, int] = {}
    for call, span in zip(signatures, watch.spans()[::2], strict=True):  # every second span is between operators
        nbytes = span.peak_bytes - max(span.start_bytes, span.end_bytes)
        hidden[call] = max(hidden.get(call, 0), nbytes)
    return {"hidden_bytes": {call: nbytes for call, nbytes in hidden.items() if nbytes}}


class _Calls(TorchDispatchMode):
    """Marks the beginning and the end of every operator, and adds its signature."""

    def __init__(self, signatures: list[str], mark: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.signatures, self._mark = signatures, mark

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
