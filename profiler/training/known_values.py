"""Tracks the values of small tensors that have none themselves: fake ones, and those of a rehearsed device.

A model's factory makes a batch with an attention mask, and the step tests whether it masks anything. Small tensors that
the code makes without data of its own (`ones_like`, slices, comparisons, drawn tokens) are therefore also computed on
the CPU. Only tests (`mask.all()`, `equal`) are answered from these values; sizes are not, since a GPU draws other
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
MOST_WHOLE = 2**22  # elements of an integer or boolean tensor, such as a batch of tokens
MOST_FRACTIONS = 2**16  # elements of a floating-point tensor; few, since weights are floating-point too, not only masks
FRESH = {  # operators whose results do not depend on the values of their arguments
    aten.ones_like,
    aten.zeros_like,
    aten.full_like,
    aten.rand_like,
    aten.randint_like,
    aten.new_ones,
    aten.new_zeros,
    aten.new_full,
}
UNFILLED = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
COMPARISONS = {aten.equal.default, aten.allclose.default}
IS_TRUE = aten._local_scalar_dense.default


class Draws:
    """A random stream for tracked values; the process's own random state stays as it is."""

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operator, on this stream if it draws random numbers; return its results."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        own = torch.get_rng_state()
        torch.set_rng_state(own if self._state is None else self._state)
        try:
            return func(*args, **kwargs)
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(own)


class Following(TorchDispatchMode):
    """Dispatch mode that tracks the values of new tensors, and answers tests of known values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = Draws()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (answer := tested(func, args)) is not None:
            return answer
        out = func(*args, **kwargs)
        follow(func, args, kwargs, out, self._draws)
        return out


class Constants(TorchFunctionMode):
    """Function mode that keeps the values of tensors made from Python data, which a dispatch mode sees too late."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        is_made = func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(args[0], torch.Tensor)
        if is_made and out.device.type != "cpu" and _is_small(out):
            out.known_value = func(*args, **{**kwargs, "device": "cpu"}).detach()
        return out


class Known(torch.Tensor):
    """A tensor with a known value; what is computed from known tensors alone is Known too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            given = list(_tensors(args, kwargs))
            if all(value_of(tensor) is not None for tensor in given):
                with Following():
                    return pytree.tree_map_only(torch.Tensor, _as_known, func(*args, **kwargs))
            versions = [(tensor, tensor._version) for tensor in given if isinstance(tensor, cls)]
            out = func(*args, **kwargs)
            for tensor, version in versions:
                if tensor._version != version:
                    _forget(tensor)
            return out


def in_batch(made: torch.Tensor, moved: torch.Tensor, *, is_followed: bool) -> torch.Tensor:
    """Return a batch tensor with the value it was made with; floating-point values are kept only if they are a mask.

    `is_followed` is for a device that does no arithmetic: its tensors have no values, and no mode tracks them.
    """
    value = value_of(made)
    if value is not None and value.is_floating_point() and not _is_mask(value):
        value = None
        moved.__dict__.pop("known_value", None)
    if value is None or not is_followed:
        return moved
    moved.known_value = value.clone() if value is made else value  # type: ignore[attr-defined]
    return _as_known(moved)


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, on the CPU; None if unknown. A small real CPU tensor is its own value."""
    value: torch.Tensor | None = tensor.__dict__.get("known_value")
    if value is not None:
        return None if value.numel() and not value.untyped_storage().nbytes() else value
    is_real = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return tensor if is_real and _is_small(tensor) else None


def tested(func: Any, args: Any) -> bool | None:
    """Return the result of an operator that tests known values; None for other operators and unknown values."""
    if func is not IS_TRUE and func not in COMPARISONS:
        return None
    values = [value_of(tensor) for tensor in _tensors(args, {})]
    if any(value is None for value in values) or (func is IS_TRUE and args[0].dtype != torch.bool):
        return None
    with no_dispatch():
        return bool(func(*values))


def follow(func: Any, args: Any, kwargs: Any, out: Any, draws: Draws | None) -> None:
    """Record the values of an operator's results if its inputs are known; else mark what it overwrote as unknown.

    Without `draws`, random numbers are unknown, since a recompute would draw other ones than the forward.
    """
    if not isinstance(func, torch._ops.OpOverload) or func._overloadpacket in UNFILLED:
        return
    is_known = func._overloadpacket in FRESH or all(value_of(tensor) is not None for tensor in _tensors(args, kwargs))
    results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)] if is_known else []
    values = _values(func, args, kwargs, draws) if results and all(map(_is_small, results)) else []
    if values and [value.shape for value in values] == [result.shape for result in results]:
        for result, value in zip(results, values, strict=True):
            result.known_value = value  # type: ignore[attr-defined]
    elif func._schema.is_mutable:
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(given, torch.Tensor):
                _forget(given)


def _values(func: Any, args: Any, kwargs: Any, draws: Draws | None) -> list[torch.Tensor]:
    """Compute the results on the CPU, invisible to modes that watch the step; [] if they are unknown."""
    if draws is None and torch.Tag.nondeterministic_seeded in func.tags:
        return []
    with no_dispatch(), torch.no_grad():
        args, kwargs = pytree.tree_map_only(torch.Tensor, _own_value, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        try:
            out = draws.run(func, args, kwargs) if draws else func(*args, **kwargs)
        except (RuntimeError, IndexError):  # the CPU's operator refuses these values
            return []
    return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]


def _own_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's value, which the operator may overwrite; uninitialized memory if it is unknown."""
    value = value_of(tensor)
    if value is None:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return value.clone() if value is tensor else value


def _is_mask(value: torch.Tensor) -> bool:
    with no_dispatch():
        return bool(((value == 0) | (value == 1)).all())


def _forget(tensor: torch.Tensor) -> None:
    """Mark the value of a tensor, and of all its views, as unknown."""
    value = tensor.__dict__.get("known_value")
    if value is not None:
        with no_dispatch():
            value.untyped_storage().resize_(0)


def _is_small(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        return False
    return tensor.numel() <= (MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE)


def _as_known(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as Known if it is a CUDA tensor with a known value, else as it is."""
    value = value_of(tensor) if type(tensor) is torch.Tensor and tensor.is_cuda else None
    if value is None:
        return tensor
    known = tensor.as_subclass(Known)
    known.known_value = value  # type: ignore[attr-defined]
    return known


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operator's arguments."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, (list, tuple)):
            yield from (one for one in given if isinstance(one, torch.Tensor))
