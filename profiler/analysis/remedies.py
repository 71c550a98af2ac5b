"""What else would lower a step's peak, and by how much at most: knows nothing of how to say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

import msgspec

from profiler.core.trace_data import Allocation, Trace, live

LEAST = 0.01  # of the peak: what gives less is not worth its line
GROWING = ("inputs", "saved", "recomputed", "temporaries")  # with the batch, where the optimizer did not make them

Life = tuple[int, int, int]  # bytes, born, died
Change = Callable[[Allocation], Iterable[Life]]


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is checkpointing, batch, optimizer, gradients, kept-gradients or offload."""

    kind: str
    nbytes: int  # the peak would be lower by at most so many


def remedies(trace: Trace, *, floor_bytes: int) -> tuple[Remedy, ...]:
    """Every remedy that could lower the peak by a hundredth or more, the strongest first.

    Each is the peak of the same step less the peak with other lives of its storages: half the batch; an optimizer
    without state; gradients freed as they arrive (the optimizer's step in the backward); gradients that are kept
    between the steps dropped instead; saved activations on the host but where they are made and last used. Bytes.
    """
    highest = max(live(trace))
    changes: dict[str, Change] = {
        "batch": _half_batch,
        "optimizer": _no_state,
        "gradients": _freed_gradients,
        "kept-gradients": _dropped_gradients(trace),
        "offload": _offloaded,
    }
    gains = {"checkpointing": highest - floor_bytes}
    gains |= {kind: highest - _peak(trace, change) for kind, change in changes.items()}
    found = [Remedy(kind=kind, nbytes=gain) for kind, gain in gains.items() if gain >= max(1, LEAST * highest)]
    return tuple(sorted(found, key=lambda remedy: -remedy.nbytes))


def _peak(trace: Trace, change: Change) -> int:
    """The peak with the lives that the change gives."""
    differences = [0] * (len(trace.operators) + 2)
    for one in trace.allocations:
        for nbytes, born, died in change(one):
            differences[born] += nbytes
            differences[died + 1] -= nbytes
    held = accumulate(differences[:-1])
    hidden = (0, *(operator.hidden_bytes for operator in trace.operators))
    return max(bytes_ + more for bytes_, more in zip(held, hidden, strict=True))


def _as_it_is(one: Allocation) -> Iterable[Life]:
    yield one.nbytes, one.born, one.died


def _half_batch(one: Allocation) -> Iterable[Life]:
    grows = one.category in GROWING and one.phase != "optimizer"
    yield (one.nbytes + 1) // 2 if grows else one.nbytes, one.born, one.died


def _no_state(one: Allocation) -> Iterable[Life]:
    if one.category != "optimizer" and one.phase != "optimizer":
        yield from _as_it_is(one)


def _freed_gradients(one: Allocation) -> Iterable[Life]:
    """The optimizer's temporaries go with them: it takes one parameter at a time."""
    if one.category == "gradients" and one.born:
        yield one.nbytes, one.born, one.born
    elif one.phase != "optimizer":
        yield from _as_it_is(one)


def _dropped_gradients(trace: Trace) -> Change:
    """A gradient of the step before is there from its module's own backward on."""
    first: dict[str, int] = {}
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "backward":
            first.setdefault(operator.module, number)

    def change(one: Allocation) -> Iterable[Life]:
        if one.category == "gradients" and not one.born:
            yield one.nbytes, min(first.get(one.module, 1), one.died + 1), one.died
        else:
            yield from _as_it_is(one)

    return change


def _offloaded(one: Allocation) -> Iterable[Life]:
    if one.category == "saved" and one.died > one.born:
        yield one.nbytes, one.born, one.born
        yield one.nbytes, one.died, one.died
    else:
        yield from _as_it_is(one)
