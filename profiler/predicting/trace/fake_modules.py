"""Lets modules of fake tensors be built and converted, without initialization and without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

DEEPCOPY: Callable[..., torch.Tensor] = torch.Tensor.__deepcopy__


@contextmanager
def as_fake() -> Iterator[None]:
    """Let modules be built, copied and converted within although their tensors are fake."""
    initialisers = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in initialisers:
            stack.enter_context(mock.patch.object(nn.init, name, _as_it_is))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _converted))
        stack.enter_context(mock.patch.object(torch.Tensor, "__deepcopy__", _copied))
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


def _converted(module: nn.Module, convert: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """Stand-in for nn.Module._apply: fake parameters cannot be swapped, so each stays the same object."""
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.data = convert(parameter)
            if isinstance(parameter, FakeTensor):
                parameter.constant = None  # the values before the conversion
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = convert(buffer)
    return module
