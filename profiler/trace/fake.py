"""Models and steps without memory or compute: PyTorch's fake tensors, and what they need to build any model.

Knows nothing of steps or of what is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import nn

from profiler.trace.quick import QuickFakes, uncollected

aten = torch.ops.aten


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Every tensor that is made within is fake, and modules are neither initialised nor copied for a conversion."""
    initialisers = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in initialisers:
            stack.enter_context(mock.patch.object(nn.init, name, _as_it_is))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _converted))
        stack.enter_context(uncollected())
        stack.enter_context(Fakes(allow_non_fake_inputs=True))
        yield


class Fakes(QuickFakes):
    """Answers what only data could tell: nothing is wrong, nothing is found, every number is 0.

    So a test such as `if not mask.all()` takes the usual way, and a loop that draws again what is out of range ends.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return _scalar(args[0])
        if func is aten.equal.default:
            return args[0].shape == args[1].shape
        if _only_writes(func) and not _is_known(args[0]):
            return args[0] if isinstance(args[0], torch.Tensor) else None
        out: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func._overloadpacket is aten.all:
            out.is_true = True
        return out


@cache
def _only_writes(func: Any) -> bool:
    """Elementwise and in place: the outcome is the first argument, which need not be worked out."""
    name = func._overloadpacket.__name__
    is_in_place = func._schema.is_mutable and name.endswith("_") and func.namespace == "aten"
    return bool(is_in_place and (torch.Tag.pointwise in func.tags or name.startswith("_foreach_")))


def _is_known(written: Any) -> bool:
    """Whether the value of what is written to is followed: the steps that an optimizer counts."""
    first = written if isinstance(written, torch.Tensor) else written[0]
    return getattr(first, "constant", None) is not None


def _scalar(tensor: Any) -> bool | int | float:
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        found: bool | int | float = constant.item()
        return found
    if tensor.dtype == torch.bool:
        return bool(getattr(tensor, "is_true", False))
    return 0.0 if tensor.is_floating_point() else 0


def _as_it_is(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
    return tensor


def _converted(module: nn.Module, convert: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """nn.Module._apply for fake parameters, which cannot be swapped; a shared one stays shared."""
    known: dict[int, tuple[Any, Any]] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in known:
                with torch.no_grad():
                    known[id(parameter)] = parameter, nn.Parameter(convert(parameter), parameter.requires_grad)
            child._parameters[name] = known[id(parameter)][1]
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = convert(buffer)
    return module
