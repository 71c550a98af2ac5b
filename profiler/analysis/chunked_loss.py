"""What a cross-entropy taken in chunks of its tokens would hold, each chunk's logits computed anew in its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from profiler.core.trace_data import Allocation, Life, Trace

CHUNKS = 8
SOFTMAX, SOFTMAX_BACKWARD = "aten._log_softmax", "aten._log_softmax_backward_data"
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
SHARED = ("saved", "recomputed", "temporaries")  # what is made of the logits, and can be made in parts


def chunked(trace: Trace) -> Callable[[Allocation], Iterable[Life]] | None:
    """The lives that storages would have; None where the forward has no cross-entropy of its own, or has several.

    From the product that makes the logits to those of its backward, which make gradients of the input and the weights,
    what is at least half as large as the log-probabilities is a `CHUNKS`th of it. The gradients of the head's weights
    are there twice meanwhile: one chunk's is added to the sum.
    """
    names = [operator.name for operator in trace.operators]
    if names.count(SOFTMAX) != 1 or names.count(SOFTMAX_BACKWARD) != 1:
        return None
    softmax, backward = names.index(SOFTMAX) + 1, names.index(SOFTMAX_BACKWARD) + 1
    first = max((number for number in _products(names) if number < softmax), default=None)
    lasts = [number for number in _products(names) if number > backward][:2]  # for the input and for the weights
    sizes = [storage.nbytes for storage in trace.allocations if storage.born == softmax]
    if first is None or not lasts or not sizes:
        return None
    head, last, least = trace.operators[first - 1].module, lasts[-1], max(sizes) / 2
    made = {number for number in range(first, last + 1) if number == first or names[number - 1] not in PRODUCTS}

    def change(storage: Allocation) -> Iterable[Life]:
        is_shared = storage.born in made and storage.category in SHARED and storage.nbytes >= least
        yield -(-storage.nbytes // CHUNKS) if is_shared else storage.nbytes, storage.born, storage.died
        if first <= storage.born <= last and storage.category == "gradients" and storage.module == head:
            yield storage.nbytes, storage.born, last

    return change


def _products(names: list[str]) -> list[int]:
    """The numbers of the products of matrices."""
    return [number for number, name in enumerate(names, start=1) if name in PRODUCTS]
