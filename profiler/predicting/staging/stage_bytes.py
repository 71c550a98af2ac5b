"""Computes the bytes that each stage of a traced step holds, as a planner counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec

from profiler.core.trace_data import Trace, live, resting, summed
from profiler.predicting.staging.stage_operators import StageSpan


class StageBytes(msgspec.Struct, frozen=True, kw_only=True):
    """The byte fields of a stage, as defined in `planning.chain.Stage`."""

    output_bytes: int
    saved_bytes: int
    own_saved_bytes: int
    forward_extra_bytes: int
    plain_forward_extra_bytes: int
    backward_extra_bytes: int
    gradient_bytes: int


def held(trace: Trace, stages: Sequence[StageSpan]) -> list[StageBytes]:
    """Return the bytes of every stage, from a step in which all are kept."""
    counted, later = [], 0
    own = _own(trace, stages)
    gone = [0, *(_gone(trace, *pair) for pair in pairwise(stages))]
    alive = live(trace)
    between = ((one.nbytes, one.born, max(one.born, one.died) - 1) for one in trace.allocations)
    rest = summed(between, len(trace.operators))  # live after each operator has ended
    for stage, allocations, before in zip(stages[::-1], own[::-1], gone[::-1], strict=True):
        gradients = _gradients(trace, stage)
        base = rest[stage.first - 1] + later + gradients
        counted.append(_without(before, _held(trace, stage, allocations, gradients, alive, base)))
        later += gradients
    return counted[::-1]


def _gone(trace: Trace, before: StageSpan, stage: StageSpan) -> int:
    """Return the bytes of inputs that a pinned stage does not keep: `cat` does not keep a block's output."""
    if stage.blocks:
        return 0  # its checkpoint keeps its input
    allocations = [trace.allocations[place] for place in before.outputs]
    return sum(one.nbytes for one in allocations if before.first <= one.born and one.died <= stage.last)


def _without(gone: int, held: StageBytes) -> StageBytes:
    """Deduct input bytes that are freed early (`gone`) from what the stage saves.

    Planners count an output as held until the next stage's backward.
    """
    taken = min(gone, held.saved_bytes)
    own = min(held.own_saved_bytes, held.saved_bytes - taken)
    return msgspec.structs.replace(
        held,
        saved_bytes=held.saved_bytes - taken,
        own_saved_bytes=own,
        forward_extra_bytes=held.forward_extra_bytes + taken,
        backward_extra_bytes=held.backward_extra_bytes + held.own_saved_bytes - own,
    )


def static_bytes(trace: Trace, stages: Sequence[StageSpan]) -> int:
    """Return the bytes that are live before the forward and remain so."""
    return resting(trace, stages[0].first - 1)


def floor_bytes(trace: Trace) -> int:
    """Return the peak outside of forward and backward: in the optimizer's step, or where gradients are zeroed."""
    alive = live(trace)
    inside = {"forward", "backward"}
    return max(
        (max(alive[first : last + 1], default=0) for phase, first, last in trace.spans() if phase not in inside),
        default=0,
    )


def _held(trace: Trace, stage: StageSpan, own: list[int], gradients: int, alive: list[int], base: int) -> StageBytes:
    """Return the bytes of one stage.

    `base` is what else is live in its backward: what was live before its forward, and the parameter gradients of later
    stages and its own.
    """
    own_outputs = [place for place in own if place in stage.outputs]
    outputs = sum(trace.allocations[place].nbytes for place in own_outputs)
    kept = [place for place in own if trace.allocations[place].died > stage.last or place in stage.outputs]
    saved = sum(trace.allocations[place].nbytes for place in kept)
    passing = sum(
        trace.allocations[place].nbytes for place in own_outputs if trace.allocations[place].died < stage.backward_first
    )
    backward = max(alive[stage.backward_first : stage.backward_last + 1], default=0)
    return StageBytes(
        output_bytes=outputs,
        saved_bytes=saved,
        own_saved_bytes=saved - passing,
        forward_extra_bytes=max(0, _peak(trace, stage, own, saving=True) - saved),
        plain_forward_extra_bytes=max(0, _peak(trace, stage, own, saving=False) - outputs),
        backward_extra_bytes=backward - base - outputs - (saved - passing),
        gradient_bytes=gradients,
    )


def _own(trace: Trace, stages: Sequence[StageSpan]) -> list[list[int]]:
    """Return, by stage, the indices of the storages that its forward allocates."""
    by_birth: dict[int, list[int]] = {}
    for place, allocation in enumerate(trace.allocations):
        by_birth.setdefault(allocation.born, []).append(place)
    return [
        [place for number in range(stage.first, stage.last + 1) for place in by_birth.get(number, ())]
        for stage in stages
    ]


def _gradients(trace: Trace, stage: StageSpan) -> int:
    """Return the bytes of parameter gradients that the stage's backward allocates."""
    return sum(
        allocation.nbytes
        for allocation in trace.allocations
        if allocation.category == "gradients" and stage.backward_first <= allocation.born <= stage.backward_last
    )


def _peak(trace: Trace, stage: StageSpan, own: Iterable[int], *, saving: bool) -> int:
    """Return the peak of what the stage's forward allocates; without `saving`, as if autograd kept nothing. Bytes."""
    change = [0] * (stage.last - stage.first + 3)
    for place in own:
        allocation = trace.allocations[place]
        let_go = None if saving or place in stage.outputs else allocation.let_go
        end = allocation.died if let_go is None else let_go
        change[allocation.born - stage.first] += allocation.nbytes
        change[min(end, stage.last) - stage.first + 1] -= allocation.nbytes
    operators = trace.operators[stage.first - 1 : stage.last]
    return max(
        (at + allocation.hidden_bytes for at, allocation in zip(accumulate(change), operators, strict=False)), default=0
    )
