"""Which tensors of a hollow GPU hold true values, and their values on the CPU: torch and the standard library alone.

A hollow GPU's memory is this process's own, so that a CPU tensor can stand over it; nothing is allocated on the device.
What is known is remembered by the address of a storage, together with a weak reference to it: whether a tensor is
known is asked without a Python object for its storage, which would make autograd add gradients out of place.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

REAL, ASSUMED = 1, 2  # made of what came from the host alone; made also of what was assumed
LIMIT = 1 << 20  # elements of an integer or boolean tensor whose values are kept
FLOATS = 1 << 15  # elements of a floating-point tensor: few, as weights are such too; and more would take threads
Tensor: Any = torch.Tensor
TENSORS = {torch.Tensor, torch.nn.Parameter}
_storage: Any = torch.UntypedStorage


class Mark:
    """What is known of a storage."""

    __slots__ = ("real", "state", "uniform", "weak")

    def __init__(self, weak: int, state: int, uniform: Any) -> None:
        self.weak, self.state, self.uniform = weak, state, uniform  # uniform: the value of all elements, or None
        self.real: Any = None  # which elements are, where not all of them are

    def state_of(self, tensor: Any) -> int:
        """Return the state of a tensor in this storage."""
        if self.real is None:
            return self.state
        part = self.real.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return REAL if bool(part.all()) else ASSUMED

    def __del__(self, free: Any = _storage._free_weak_ref) -> None:
        free(self.weak)


marks: dict[int, Mark] = {}  # by the address of the storage


def is_ours(value: Any) -> bool:
    """Whether a value is a plain tensor on a GPU."""
    return type(value) in TENSORS and value.is_cuda and value.layout is torch.strided


def mark_of(tensor: Any) -> Mark | None:
    """Return what is known of a GPU tensor's storage."""
    mark = marks.get(_place(tensor))
    if mark is not None and _storage._expired(mark.weak):
        del marks[_place(tensor)]
        return None
    return mark


def _place(tensor: Any) -> int:
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def is_discrete(tensor: Any) -> bool:
    """Whether a tensor holds integers or booleans."""
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex)


def is_small(tensor: Any) -> bool:
    """Whether the values of a tensor are kept."""
    return bool(tensor.numel() <= (LIMIT if is_discrete(tensor) else FLOATS))


def mark(tensor: Any, state: int, uniform: Any = None) -> None:
    """Remember that a tensor's storage holds what its values are."""
    if not tensor.numel() or (not is_discrete(tensor) and torch._C._current_autograd_node() is not None):
        return  # a gradient: see above
    storage = tensor.untyped_storage()
    marks[storage.data_ptr()] = Mark(storage._weak_ref(), state, uniform)


def forget(*values: Any) -> None:
    """Forget what is known of the storages of tensors, and of lists of them."""
    for tensor in flat(values) if marks else ():
        if is_ours(tensor):
            marks.pop(_place(tensor), None)


def host(tensor: Any) -> Any:
    """Return a CPU tensor over the memory of a GPU tensor."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    num = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = (ctypes.c_byte * (num * tensor.element_size())).from_address(tensor.data_ptr())
    whole = torch.frombuffer(buffer, dtype=torch.uint8).view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride())


def value_of(tensor: Any, mark: Mark | None) -> Any:
    """Return the values of a tensor on the CPU; zeros where they are not known."""
    if mark is not None and mark.uniform is None and (is_discrete(tensor) or tensor.numel() <= LIMIT):
        return host(tensor)
    value = 0 if mark is None or mark.uniform is None else mark.uniform
    return torch.full((), value, dtype=tensor.dtype, device="cpu").expand(tensor.shape)


def put(tensor: Any, values: Any, state: int) -> None:
    """Write values into a GPU tensor, and remember that they are known.

    Where it is a part of a larger storage that is not known, the rest of integers and booleans is zero from then on,
    and floating-point numbers stay unknown.
    """
    known = mark_of(tensor)
    if known is None and is_discrete(tensor):
        storage = tensor.untyped_storage()
        if tensor.nbytes < storage.nbytes():
            if storage.nbytes() > LIMIT * tensor.element_size():
                return
            ctypes.memset(storage.data_ptr(), 0, storage.nbytes())
    elif known is None:  # without looking at its storage: see above
        base = tensor._base if tensor._is_view() else tensor
        if tensor.nbytes < base.nbytes or (base is tensor and tensor.storage_offset()):
            return
    if known is not None and known.uniform is not None:
        known = None
    host(tensor).copy_(values)
    mark(tensor, state if known is None else max(state, known.state))


def flat(value: Any) -> list[Any]:
    """Return the tensors of an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in flat(part)]
    return [tensor for part in value for tensor in flat(part)] if isinstance(value, (list, tuple)) else []
