"""Sets where a router sends tokens instead of computing it: the indices of `topk`, `max`, `argmax`, `sort` and such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
NUM_KNOWN = 2**24  # elements: the largest tensor with known values, such as a mask of tokens by experts
_CHOOSING: dict[Any, tuple[int | None, int]] = {  # places of the indices (None: the sole result) and of `dim`
    aten.topk: (1, 2),
    aten.sort: (1, 1),
    aten.max: (1, 1),
    aten.min: (1, 1),
    aten.kthvalue: (1, 2),
    aten.argmax: (None, 1),
    aten.argmin: (None, 1),
    aten.argsort: (None, 1),
}
Known = Callable[[torch.Tensor], torch.Tensor]  # makes a fake tensor with the values of a real one


def chooses(func: Any, args: Any) -> bool:
    """Whether the operator chooses among entries by unknown values."""
    return func._overloadpacket in _CHOOSING and getattr(args[0], "constant", None) is None


def with_choices(out: Any, func: Any, args: Any, kwargs: Any, routing: str, known: Known) -> Any:
    """Return the results of an operator that chooses, with values for its indices along a dimension."""
    scores, (index, where) = args[0], _CHOOSING[func._overloadpacket]
    if index is not None and not isinstance(out, (tuple, list)):
        return out  # over all entries, as `max()`
    dimension = kwargs.get("dim", args[where] if len(args) > where else -1)
    if not isinstance(dimension, int) or not scores.ndim:
        return out  # over the whole tensor, as `argmax()`
    indices = out if index is None else out[index]
    chosen = known(_chosen(indices, scores, dimension % scores.ndim, routing))
    return chosen if index is None else type(out)((*out[:index], chosen, *out[index + 1 :]))


def _chosen(indices: torch.Tensor, scores: torch.Tensor, dimension: int, routing: str) -> torch.Tensor:
    """Return real indices: balanced ones cycle through the entries, row by row; the worst are the same in all rows."""
    is_kept = indices.ndim == scores.ndim
    shape = [*indices.shape] if is_kept else [*indices.shape[:dimension], 1, *indices.shape[dimension:]]
    each = shape.pop(dimension)
    num_rows = torch.Size(shape).numel()
    numbers = torch.arange(num_rows * each) if routing == "balanced" else torch.arange(each).repeat(num_rows)
    rows = (numbers % scores.shape[dimension]).reshape(*shape, each).movedim(-1, dimension)
    return (rows if is_kept else rows.squeeze(dimension)).contiguous()


def without_masks(func: Any, args: Any) -> Any:
    """Return the arguments of an indexing operator, with positions in place of masks of known values."""
    if func._overloadpacket not in INDEXING:
        return args
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        if is_mask and getattr(index, "constant", None) is not None:
            indices += aten.nonzero.default(index).unbind(1)
        else:
            indices.append(index)
    return (args[0], indices, *args[2:])
