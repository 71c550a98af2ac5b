"""Finds which storages of a traced step grow with the batch size, and along which of their dimensions.

Growth of a storage is a range of strides: in (batch, time, channels), from the bytes of one sample to those of all. A
dimension of any view grows if it runs over that range, so views need no rule. Which results of an operator grow is
found by running it again on `meta` tensors that are twice as long where they grow. Only sizes that are plain numbers
(`torch.zeros(batch, states)`, `expand`) are recognized by their value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

aten = torch.ops.aten
META = torch.device("meta")
OF_PLAIN_SIZES = (aten.new_empty, aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty_strided, aten.repeat)
SIZE_NAMES = ("input_size", "input_sizes", "sizes", "N")  # names of arguments that repeat the sizes of a tensor
NOT_WITHOUT_DATA = (  # raised by operators that cannot run on `meta`, in C++ and in Python
    *(RuntimeError, LookupError, TypeError, ValueError),
    *(ArithmeticError, AttributeError, AssertionError),
)

Grown = tuple[tuple[int, int], ...]  # of a storage: the stride and the extent in bytes of each dimension that grows
Places = tuple[int, ...]  # the dimensions of a tensor that grow; twice if with the square of the batch
Find = Callable[[torch.Tensor], Grown | None]  # returns the growth of a tensor's storage; None if unknown


def size_of(batch: Sequence[torch.Tensor], batch_size: int | None) -> int | None:
    """Return `batch_size` if a tensor has that size, else the size that most tensors have; None without tensors.

    Ties go to the size that comes first in the first tensor.
    """
    shapes = [tensor.shape for tensor in batch if tensor.ndim]
    counts = Counter(size for shape in shapes for size in dict.fromkeys(shape))  # in order of appearance
    return batch_size if batch_size in counts else max(counts, key=counts.__getitem__, default=None)


class BatchGrowth:
    """Propagates growth with a batch of this size through the operators of a step."""

    def __init__(self, size: int, find: Find) -> None:
        self._size = size
        self._find = find
        self._grown_sizes = {size}  # sizes of dimensions that grow
        self._fixed_sizes: set[int] = set()  # sizes of the other dimensions of the same tensors
        self._outcomes: dict[Any, tuple[Places, ...]] = {}

    def of_batch(self, tensor: torch.Tensor) -> Grown:
        """Return the growth of a batch tensor; integers without the batch's size grow along their longest dimension."""
        shape = list(tensor.shape)
        if self._size in shape:
            places: Places = (shape.index(self._size),)
        else:
            is_indices = not tensor.is_floating_point() and tensor.dtype != torch.bool
            places = (shape.index(max(shape)),) if is_indices and shape else ()
        self._note(tensor, places)
        return extents(tensor, places)

    def of_results(self, func: Any, args: Any, kwargs: Any, results: Sequence[torch.Tensor]) -> list[Grown]:
        """Return the growth of the storages of an operator's results, in their order."""
        given = {id(tensor): self._places(tensor) for tensor in tensors_of((args, kwargs))}
        if func._overloadpacket in OF_PLAIN_SIZES or not given:
            outcome = [self._by_sizes(tensor.shape) or _flattened(tensor, args, given) for tensor in results]
        elif not any(given.values()):
            return [()] * len(results)
        else:
            key = func, _spelled((args, kwargs), given)
            if key not in self._outcomes:
                self._outcomes[key] = self._tried(func, args, kwargs, results, given)
            outcome = list(self._outcomes[key])
        return [
            extents(tensor, places) or self._unreduced(tensor, given)
            for tensor, places in zip(results, outcome, strict=True)
        ]

    @staticmethod
    def _unreduced(tensor: torch.Tensor, given: dict[int, Places]) -> Grown:
        """Return the growth of a result whose storage holds all elements from before a reduction: all of it grows."""
        nbytes = tensor.untyped_storage().nbytes()
        return ((nbytes, nbytes),) if nbytes > tensor.nbytes and any(given.values()) else ()

    def _places(self, tensor: torch.Tensor) -> Places:
        """Return the dimensions of a tensor that grow or, if none does, an expanded one of a growing size.

        Of several dimensions over the same bytes, the one of the batch's size counts, else the outermost.
        """
        grown = self._find(tensor)
        if grown is None:
            return self._by_sizes(tensor.shape)
        places: list[int] = []
        if grown:
            sizes, strides = tensor.shape, [stride * tensor.itemsize for stride in tensor.stride()]
            dims = [dim for dim, size in enumerate(sizes) if size > 1]
            for low, high in grown:
                within = [dim for dim in dims if strides[dim] < high and low < strides[dim] * sizes[dim]]
                places += [max(within, key=lambda dim: (sizes[dim] == self._size, strides[dim]))] if within else []
        return tuple(places) or self._expanded(tensor)

    def _expanded(self, tensor: torch.Tensor) -> Places:
        if 0 not in tensor.stride():
            return ()
        sizes = self._grown_sizes - self._fixed_sizes | {self._size}
        dims = zip(tensor.shape, tensor.stride(), strict=True)
        return tuple(dim for dim, (size, stride) in enumerate(dims) if not stride and size > 1 and size in sizes)[:1]

    def _by_sizes(self, shape: Sequence[int]) -> Places:
        """Return the first dimension of a growing size. An ambiguous batch size counts, except in a square shape."""
        is_square = len(set(shape)) == 1
        sizes = self._grown_sizes - self._fixed_sizes | (set() if is_square else {self._size})
        return tuple(dim for dim, size in enumerate(shape) if size > 1 and size in sizes)[:1]

    def _tried(
        self, func: Any, args: Any, kwargs: Any, results: Sequence[torch.Tensor], given: dict[int, Places]
    ) -> tuple[Places, ...]:
        for tensor in tensors_of((args, kwargs)):
            self._note(tensor, given[id(tensor)])
        try:
            with no_dispatch():
                more_args, more_kwargs = _resized(func, args, kwargs, given, Fraction(2))
                larger = list(tensors_of(func(*more_args, **more_kwargs)))
            outcome = tuple(_longer(tensor, other) for tensor, other in zip(results, larger, strict=True))
        except NOT_WITHOUT_DATA:
            outcome = tuple(_matched(func, tensor, list(tensors_of((args, kwargs))), given) for tensor in results)
        for tensor, places in zip(results, outcome, strict=True):
            self._note(tensor, places)
        return outcome

    def _note(self, tensor: torch.Tensor, places: Places) -> None:
        for dim, size in enumerate(tensor.shape if places else ()):
            (self._grown_sizes if dim in places else self._fixed_sizes).add(size)


def extents(tensor: torch.Tensor, places: Places) -> Grown:
    """Return the growth of a new tensor's storage, whose dimensions `places` grow."""
    width = tensor.itemsize
    return tuple((tensor.stride(dim) * width, tensor.stride(dim) * tensor.shape[dim] * width) for dim in places)


def _resized(func: Any, args: Any, kwargs: Any, given: dict[int, Places], by: Fraction) -> tuple[Any, Any]:
    """Return an operator's arguments for a batch `by` times as large, with tensors on `meta`."""
    sizes = max(([tensor.shape[dim] for dim in given[id(tensor)]] for tensor in tensors_of((args, kwargs))), key=len)

    def resized(value: Any, name: str) -> Any:
        if name in SIZE_NAMES:
            return _resized_sizes(value, sizes, by)
        return tree_map(lambda leaf: _without_data(leaf, given[id(leaf)], by) if id(leaf) in given else leaf, value)

    given_args = [resized(value, name) for value, name in zip(args, _names(func), strict=False)]
    given_kwargs = {name: META if name == "device" else resized(value, name) for name, value in kwargs.items()}
    return given_args, given_kwargs


def _resized_sizes(value: Any, sizes: Sequence[int], by: Fraction) -> Any:
    """Scale the growing ones of sizes given as plain numbers: for each, the first number equal to it."""
    changed = list(value) if isinstance(value, (tuple, list)) else [value]
    for size in sizes:
        if size in changed:
            changed[changed.index(size)] = int(size * by)
    return changed if isinstance(value, (tuple, list)) else changed[0]


def _without_data(tensor: torch.Tensor, places: Places, by: Fraction) -> torch.Tensor:
    """Return a tensor on `meta`, scaled where it grows, with strides in the same order."""
    sizes, strides = list(tensor.shape), list(tensor.stride())
    for dim in places:
        before, sizes[dim] = sizes[dim], max(1, int(sizes[dim] * by))
        strides = [stride * sizes[dim] // before if stride > tensor.stride(dim) else stride for stride in strides]
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=META)


def _longer(tensor: torch.Tensor, other: torch.Tensor) -> Places:
    """Return the dimensions in which the other is longer; twice if it is more than three times as long."""
    if tensor.ndim != other.ndim:
        raise ValueError("the results are of different kinds")
    pairs = list(enumerate(zip(tensor.shape, other.shape, strict=True)))
    longer = [dim for dim, (size, larger) in pairs if larger > size]
    return tuple(longer + [dim for dim, (size, larger) in pairs if larger > 3 * size > 0])


def _flattened(result: torch.Tensor, args: Any, given: dict[int, Places]) -> Places:
    """Return the growing dimension of a 1-D result: it grows if an argument with as many elements does."""
    numbers = {tensor.numel() for tensor in tensors_of(args) if given[id(tensor)]}
    return (0,) if result.ndim == 1 and result.numel() in numbers else ()


def _matched(func: Any, result: torch.Tensor, given: Sequence[torch.Tensor], growing: dict[int, Places]) -> Places:
    """Return a result's growing dimensions, if the operator cannot run on `meta`: an argument's of equal sizes."""
    for tensor in given:
        own = growing[id(tensor)]
        places = tuple(dim for dim in own if dim < result.ndim and result.shape[dim] == tensor.shape[dim])
        if places:
            return places
    return (0,) if torch.Tag.dynamic_output_shape in func.tags and result.ndim else ()


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _spelled(value: Any, given: dict[int, Places]) -> Any:
    """Return a hashable key of all that the outcome depends on."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, given[id(value)]
    if isinstance(value, (tuple, list)):
        return tuple(_spelled(item, given) for item in value)
    if isinstance(value, dict):
        return tuple((name, _spelled(item, given)) for name, item in value.items())
    return value


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_of(item)
    elif isinstance(tree, dict):
        yield from tensors_of(tuple(tree.values()))
