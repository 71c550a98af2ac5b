"""What a step holds at one operator, by category and by module: knows nothing of why."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from profiler.analysis.stages import stage_of
from profiler.core.trace_data import Allocation, Trace, held_at, live

BEFORE = "before"  # the step
HIDDEN = "temporaries"  # what an operator takes besides its outputs counts as this


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What goes under one name."""

    name: str
    nbytes: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The operator at which most is live. `number` is 0 where that is before the step."""

    nbytes: int
    number: int
    phase: str  # forward, recompute, backward, optimizer
    operator: str
    module: str


def peak(trace: Trace) -> Peak:
    """The first operator at which most is live."""
    held = live(trace)
    number = max(range(len(held)), key=held.__getitem__)
    if number == 0:
        return Peak(nbytes=held[0], number=0, phase=BEFORE, operator="", module="")
    operator = trace.operators[number - 1]
    return Peak(
        nbytes=held[number], number=number, phase=operator.phase, operator=operator.name, module=operator.module
    )


def categories_at(trace: Trace, operator: int) -> tuple[Share, ...]:
    """What is live while an operator runs, by category, the largest first; they add up to all of it."""
    return _shares(trace, operator, of=lambda one: one.category, hidden=HIDDEN)


def modules_at(trace: Trace, operator: int, *, blocks: tuple[str, ...]) -> tuple[Share, ...]:
    """The same by module: what is inside a block under the block's name, the rest under its own.

    The name is empty for what is outside of all modules.
    """
    stage = stage_of(blocks)
    at_work = trace.operators[operator - 1].module if operator else ""
    return _shares(trace, operator, of=lambda one: stage(one.module) or one.module, hidden=stage(at_work) or at_work)


def nbytes(allocations: Iterable[Allocation]) -> int:
    """The sum of their bytes."""
    return sum(one.nbytes for one in allocations)


def _shares(trace: Trace, operator: int, *, of: Callable[[Allocation], str], hidden: str) -> tuple[Share, ...]:
    found: dict[str, int] = {}
    for one in held_at(trace, operator):
        found[of(one)] = found.get(of(one), 0) + one.nbytes
    if operator and trace.operators[operator - 1].hidden_bytes:
        found[hidden] = found.get(hidden, 0) + trace.operators[operator - 1].hidden_bytes
    shares = [Share(name=name, nbytes=bytes_) for name, bytes_ in found.items()]
    return tuple(sorted(shares, key=lambda share: (-share.nbytes, share.name)))
