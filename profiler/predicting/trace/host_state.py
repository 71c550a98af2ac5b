"""Tells tensors on the host from those on the device: optimizer state, such as Adam's step count, and offloads.

All tensors of a prediction are on the CPU, including those that stand for device tensors; host tensors are marked.
Optimizer state is on the host if it is created without a device or with device "cpu"; state on the device is created on
the device of a parameter. Operators that create or change a host tensor are not traced; copies between host and device
allocate on the device as CUDA's copies do (aten/src/ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from profiler.core.own_thread import replaced
from profiler.predicting.trace.tracer import on_host
from profiler.training.optimizers.wrapped import wrapped
from profiler.training.workload import tensors

SUPPORTED = "_get_capturable_supported_devices"
FACTORIES = {torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.zeros, torch.ones, torch.empty, torch.full}

TENSOR: Any = torch.Tensor
DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
NUM_OPTIONS = 2  # positional flags of `TENSOR.to`: non_blocking and copy
ANSWERS = {  # queries of a tensor's device: the answers for one on the device, and on the host
    TENSOR.is_cuda.__get__: (True, False),
    TENSOR.is_cpu.__get__: (False, True),
    TENSOR.get_device: (0, -1),
}

OWN_DEVICE = FakeTensor.device
IS_DENSE = torch.ops.aten.is_non_overlapping_and_dense.default  # torch 2.9 has it under another name in Python


@contextmanager
def host_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Make the optimizer's steps mark tensors that they create on the host, and accept `capturable` as on CUDA."""
    with entered_in_steps(optimizer, [HostMarking()]), ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, SUPPORTED):
                stack.enter_context(replaced(module, **{SUPPORTED: _as_cuda}))
        yield


@contextmanager
def entered_in_steps(optimizer: torch.optim.Optimizer, modes: Sequence[Any]) -> Iterator[None]:
    """Enter the modes during each step of the optimizer, or of one that it wraps or that hooks run."""
    at_work: list[Any] = []  # the optimizers that are stepping, the outermost first

    def enter(part: Any, *given: Any) -> None:
        for mode in () if at_work else modes:
            mode.__enter__()
        at_work.append(part)

    def leave(*given: Any) -> None:
        at_work.pop()
        for mode in () if at_work else modes:
            mode.__exit__(None, None, None)

    with ExitStack() as stack:
        for part in wrapped(optimizer):
            stack.callback(part.register_step_pre_hook(enter).remove)
            stack.callback(part.register_step_post_hook(leave).remove)
        yield


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the tensor was marked as being on the host."""
    return getattr(tensor, "is_on_host", False)


class HostMarking(TorchFunctionMode):
    """Function mode that marks the tensors that factories create on the host."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        options = keywords or {}
        tensor = function(*arguments, **options)
        if function in FACTORIES and options.get("device") in (None, "cpu"):
            tensor.is_on_host = True
        return tensor


def _as_cuda(*given: Any, **named: Any) -> list[str]:
    """Return the devices that `capturable` supports: the CPU, whose tensors stand for CUDA's here."""
    return ["cpu"]


class HostMoves(TorchFunctionMode):
    """Function mode in which tensors appear on the device, except those that it saw created on or moved to the host."""

    def __enter__(self) -> Any:
        FakeTensor.device = property(_said_device)  # type: ignore[method-assign,assignment]  # replaced, since it bypasses all modes
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        FakeTensor.device = OWN_DEVICE  # type: ignore[method-assign]

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        named = dict(keywords or {})
        if function in ANSWERS:
            return ANSWERS[function][is_on_host(arguments[0])]
        if function in (TENSOR.cpu, TENSOR.cuda):
            non_blocking = named.get("non_blocking", False)
            return _moved(arguments[0], to_host=function is TENSOR.cpu, non_blocking=non_blocking)
        if function is TENSOR.to:
            return _to(*arguments, **named)
        if function is TENSOR.copy_:
            return _copied(*arguments, **named)
        if function is TENSOR.pin_memory:
            return _run(TENSOR.clone, arguments[:1], {}, to_host=True)
        named.pop("pin_memory", None)
        given = tensors((arguments, named))
        to_host = is_on_host(given[0]) if given else True  # torch's default device
        if named.get("device") is not None:
            to_host = _is_host(named["device"])
            named["device"] = HOST
        return _run(function, arguments, named, to_host=to_host)


def _said_device(tensor: FakeTensor) -> torch.device:
    """Return the device that traced code sees; within an operator, where the mode is off, the tensor's own."""
    if not isinstance(_get_current_function_mode(), HostMoves):
        own: torch.device = OWN_DEVICE.fget(tensor)  # type: ignore[attr-defined]
        return own
    return HOST if is_on_host(tensor) else DEVICE


def _run(function: Any, arguments: Any, keywords: Any, *, to_host: bool) -> Any:
    """Run the function; a result on the host is marked and not traced."""
    with on_host() if to_host else nullcontext():
        out = function(*arguments, **keywords)
    for tensor in tensors(out) if to_host else ():
        tensor.is_on_host = True  # type: ignore[attr-defined]
    return out


def _to(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """Stand-in for `TENSOR.to` in all its forms: with a device, a dtype, both, or another tensor."""
    flags = [argument for argument in arguments if isinstance(argument, bool)]
    non_blocking, copy = (*flags, *(False,) * NUM_OPTIONS)[:NUM_OPTIONS]
    options = {
        "non_blocking": non_blocking or named.get("non_blocking", False),
        "copy": copy or named.get("copy", False),
    }
    other = named.get("other", arguments[0] if arguments else None)
    if isinstance(other, torch.Tensor):
        return _moved(tensor, to_host=is_on_host(other), dtype=other.dtype, **options)
    named = {name: value for name, value in named.items() if name != "copy"}
    device, dtype, _, _ = torch._C._nn._parse_to(
        *(argument for argument in arguments if not isinstance(argument, bool)), **named
    )
    to_host = is_on_host(tensor) if device is None else _is_host(device)
    return _moved(tensor, to_host=to_host, dtype=dtype, **options)


def _moved(
    tensor: torch.Tensor,
    *,
    to_host: bool,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> torch.Tensor:
    wanted = dtype or tensor.dtype
    if is_on_host(tensor) == to_host:
        return (
            tensor
            if wanted == tensor.dtype and not copy
            else _run(TENSOR.to, (tensor, wanted), {"copy": True}, to_host=to_host)
        )
    if to_host:
        tensor = _straight(tensor.to(wanted) if non_blocking else tensor)
    elif non_blocking and wanted != tensor.dtype:
        tensor = tensor.clone()  # copied in the host's dtype, and converted on the device
    moved: torch.Tensor = _run(TENSOR.to, (tensor, wanted), {"copy": True}, to_host=to_host)
    return moved


def _straight(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor to copy to the host: one that is not dense is first copied on the device."""
    return tensor if IS_DENSE(tensor) else tensor.contiguous()


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    to_host = is_on_host(target)
    if is_on_host(source) != to_host:
        if to_host:
            source = source.to(target.dtype) if non_blocking else source
            source = source if source.stride() == target.stride() else source.contiguous()
        elif (non_blocking and source.dtype != target.dtype) or not IS_DENSE(target):
            source = torch.empty_like(target, dtype=source.dtype)
    _run(TENSOR.copy_, (target, source), {}, to_host=to_host)
    return target


def _is_host(device: Any) -> bool:
    return torch.device(device if not isinstance(device, int) else f"cuda:{device}").type == HOST.type
