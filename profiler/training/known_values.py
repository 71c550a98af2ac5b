"""Values of small tensors, kept beside tensors that have none: fake ones, and those of a device that computes nothing.

A model's factory makes a batch with an attention mask, and the step asks whether it masks anything. What the code
makes without data of its own (`ones_like`, slices, comparisons, drawn tokens) is computed on the CPU too, where it is
small. Only tests are answered from these values (`mask.all()`, `equal`): no size is, since a GPU draws other numbers.
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
MOST_WHOLE = 2**22  # elements of whole numbers and booleans, as of a batch of tokens
MOST_FRACTIONS = 2**16  # elements: masks are made of fractions, too, but so are weights
FRESH = {  # results that do not hang on the values of what they are given
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
    """Random numbers beside the process's own, whose state is left as it is."""

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's results."""
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
    """While it is entered, values are kept beside what is made, and tests of them are answered."""

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
    """While it is entered, what is made of Python's numbers keeps them, which are on the device before any operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        is_made = func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(args[0], torch.Tensor)
        if is_made and out.device.type != "cpu" and _is_small(out):
            out.known_value = func(*args, **{**kwargs, "device": "cpu"}).detach()
        return out


class Known(torch.Tensor):
    """A tensor with a value beside it, as is what is made of such tensors alone."""

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
    """A tensor of the batch with the value that it was made with; fractions are kept only where they are a mask.

    `is_followed` where tensors have no values of their own and no mode follows what is made of them: on a device that
    computes nothing.
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
    """The values of a tensor, on the CPU; None where they are not known. A real tensor of the CPU is its own."""
    value: torch.Tensor | None = tensor.__dict__.get("known_value")
    if value is not None:
        return None if value.numel() and not value.untyped_storage().nbytes() else value
    is_real = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return tensor if is_real and _is_small(tensor) else None


def tested(func: Any, args: Any) -> bool | None:
    """What an operator that tests values returns, where they are known."""
    if func is not IS_TRUE and func not in COMPARISONS:
        return None
    values = [value_of(tensor) for tensor in _tensors(args, {})]
    if any(value is None for value in values) or (func is IS_TRUE and args[0].dtype != torch.bool):
        return None
    with no_dispatch():
        return bool(func(*values))


def follow(func: Any, args: Any, kwargs: Any, out: Any, draws: Draws | None) -> None:
    """Keep the values of an operator's results where they follow from known ones; forget what it has overwritten.

    Without `draws` random numbers are not known: a recompute would be told others than the forward.
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
    """The results as the CPU computes them, unseen by whatever watches the step; none where they are not known."""
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
    """A tensor's value, which may be written to; any where it is not known."""
    value = value_of(tensor)
    if value is None:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return value.clone() if value is tensor else value


def _is_mask(value: torch.Tensor) -> bool:
    with no_dispatch():
        return bool(((value == 0) | (value == 1)).all())


def _forget(tensor: torch.Tensor) -> None:
    """Make the value unknown, also that of every view."""
    value = tensor.__dict__.get("known_value")
    if value is not None:
        with no_dispatch():
            value.untyped_storage().resize_(0)


def _is_small(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        return False
    return tensor.numel() <= (MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE)


def _as_known(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor as one that is followed, where it is the device's and its value is known."""
    value = value_of(tensor) if type(tensor) is torch.Tensor and tensor.is_cuda else None
    if value is None:
        return tensor
    known = tensor.as_subclass(Known)
    known.known_value = value  # type: ignore[attr-defined]
    return known


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, (list, tuple)):
            yield from (one for one in given if isinstance(one, torch.Tensor))
