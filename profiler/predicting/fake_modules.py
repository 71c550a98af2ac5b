"""Lets modules of fake tensors be built and converted, without initialization and without copies."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from profiler.core.own_thread import replaced

LAZY = (nn.UninitializedParameter, nn.UninitializedBuffer)
NEW_PARAMETER = nn.Parameter.__new__
DEEPCOPY: Callable[..., torch.Tensor] = torch.Tensor.__deepcopy__


@contextmanager
def as_fake() -> Iterator[None]:
    """Let modules be built, copied and converted within although their tensors are fake."""
    initialisers = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in initialisers:
            stack.enter_context(replaced(nn.init, **{name: _as_it_is}))
        stack.enter_context(replaced(nn.Module, _apply=_converted))
        stack.enter_context(replaced(torch.Tensor, __deepcopy__=_copied))
        stack.enter_context(replaced(torch, from_numpy=_real(torch.from_numpy), load=_loading(torch.load)))
        stack.enter_context(replaced(nn.Parameter, __new__=_fake_parameter))
        for kind in LAZY:
            stack.enter_context(replaced(kind, __new__=_real(kind.__new__), materialize=_materialized))
        yield


def _as_it_is(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
    return tensor


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Stand-in for Tensor.__deepcopy__ that also takes fake tensors, whose storages cannot be copied."""
    if not isinstance(tensor, FakeTensor):
        return DEEPCOPY(tensor, memo)
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
    copied: torch.Tensor = memo[id(tensor)]
    return copied


def _fake_parameter(kind: type[nn.Parameter], data: Any = None, requires_grad: bool = True) -> nn.Parameter:
    """Stand-in for nn.Parameter.__new__: a real tensor, such as one that was loaded, becomes a fake parameter."""
    if type(data) is torch.Tensor and data.device.type == "cpu":
        data = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device="cpu")
    return NEW_PARAMETER(kind, data, requires_grad)


def _materialized(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Stand-in for the `materialize` of lazy parameters and buffers, which are real until then."""
    with _disable_current_modes():
        dtype = dtype or lazy.data.dtype
    made = torch.empty(shape, dtype=dtype, device="cpu")
    is_parameter = isinstance(lazy, nn.Parameter)
    torch.utils.swap_tensors(lazy, nn.Parameter(made, lazy.requires_grad) if is_parameter else made)


def _real(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes real tensors."""

    def made(*arguments: Any, **keywords: Any) -> Any:
        with _disable_current_modes():
            return make(*arguments, **keywords)

    return made


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.load that loads values, mapped into memory from a file of which not all is read."""

    def loaded(file: Any, map_location: Any = "cpu", *arguments: Any, **keywords: Any) -> Any:
        if isinstance(file, (str, PathLike)) and zipfile.is_zipfile(file):
            keywords.setdefault("mmap", True)
        with _disable_current_modes():
            return load(file, map_location or "cpu", *arguments, **keywords)

    return loaded


def _converted(module: nn.Module, convert: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """Stand-in for nn.Module._apply: fake parameters cannot be swapped, so each stays the same object."""
    for parameter in module.parameters():
        with torch.no_grad():
            converted = convert(parameter)
            if parameter.device == converted.device:
                parameter.data = converted
            else:  # it was on the device meta
                torch.utils.swap_tensors(parameter, nn.Parameter(converted, parameter.requires_grad))
            if isinstance(parameter, FakeTensor):
                parameter.constant = None  # the values before the conversion
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = convert(buffer)
    return module
