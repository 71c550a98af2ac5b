"""A model as a caller gives it: a factory, a word as on the command line, or a live module with a batch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from profiler.core.errors import UserError
from profiler.training.models.user import call

Model = Callable[[], Any] | nn.Module | str
KNOWN = 1024  # elements: of no larger tensor are values looked at in a traced step


def factory(model: Model, batch: Any, loss: Any) -> Callable[[], Any] | None:
    """Returns a function that makes a fresh module and batch; None for a word, which the catalogue knows.

    A live module stays as it is: each call returns a copy, and while a step is traced one without memory. Raises
    UserError for a module without a batch, or one that does not take it as it is without a loss; and for a batch or a
    loss beside what brings its own.
    """
    if isinstance(model, nn.Module):
        if batch is None:
            raise UserError("a module needs a batch", hint="batch=, as the module takes it, or (inputs, targets)")
        if loss is None:
            _refuse_other_arguments(model, batch)
        return _copies(model, dict(batch) if isinstance(batch, Mapping) else batch, loss)
    for name, value in (("batch", batch), ("loss", loss)):
        if value is not None:
            raise UserError(f"{name} has no effect: the model brings its own", hint="leave it out, or give a module")
    return None if isinstance(model, str) else model


def _refuse_other_arguments(module: nn.Module, batch: Any) -> None:
    """Raises UserError where the forward cannot be called with the batch, such as (inputs, targets)."""
    try:
        call(inspect.signature(module.forward).bind, batch)  # type: ignore[arg-type]  # called as a module is
    except ValueError:  # written in C, without a signature
        return
    except TypeError as error:
        message = f"the forward of {type(module).__name__} does not take the batch: {error}"
        hint = "loss=, a function of (output, targets), makes a batch of two inputs and targets"
        raise UserError(message, hint=hint) from None


def name_of(model: Model) -> str:
    """Returns what a record calls the model."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    return model if isinstance(model, str) else getattr(model, "__qualname__", "model")


def _copies(module: nn.Module, batch: Any, loss: Any) -> Callable[[], Any]:
    def made() -> tuple[Any, ...]:
        parts = (module, batch) if loss is None else (module, batch, loss)
        is_traced = isinstance(torch.empty(0), FakeTensor)
        with ExitStack() as stack:
            if is_traced:
                twins = _Twins()
                stack.enter_context(mock.patch.object(torch.Tensor, "__deepcopy__", twins.of))
                stack.enter_context(mock.patch.object(nn.Parameter, "__deepcopy__", twins.of))
            return copy.deepcopy(parts)

    return made


class _Twins:
    """Fake tensors for real ones: of the same shape, type and strides, and shared where their storages are."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}

    @property
    def of(self) -> Callable[[torch.Tensor, dict[int, Any]], torch.Tensor]:
        """Stands in for `Tensor.__deepcopy__`, whose first argument is the tensor."""

        def twin(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
            if id(tensor) not in memo:
                memo[id(tensor)] = self._made(tensor)
            made: torch.Tensor = memo[id(tensor)]
            return made

        return twin

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(self._alike(tensor), tensor.requires_grad)
        return self._alike(tensor, with_values=not tensor.requires_grad).requires_grad_(tensor.requires_grad)

    def _alike(self, tensor: torch.Tensor, *, with_values: bool = False) -> torch.Tensor:
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        known = self._storages.get(storage._cdata)
        if known is None and size == tensor.numel() and tensor.is_contiguous():
            whole = _known(tensor) if with_values and size <= KNOWN else _empty(tensor.shape, tensor.dtype)
            self._storages[storage._cdata] = whole
            return whole
        if known is None:
            known = self._storages[storage._cdata] = _empty((size,), tensor.dtype)
        flat = known if known.dtype == tensor.dtype else known.detach().reshape(-1).view(tensor.dtype)
        return flat.detach().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose values a traced forward can read: sizes and rates that the module holds."""
    with no_dispatch():
        values = tensor.detach().tolist()
    return torch.tensor(values, dtype=tensor.dtype, device="cpu")
