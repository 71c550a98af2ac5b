"""Assigns the operators of a traced step, forward and backward, to stages, and the bytes that each stage holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from profiler.analysis.live_bytes import stage_of
from profiler.core.errors import NotOnce, Unsupported
from profiler.core.trace_data import Trace, live, summed
from profiler.predicting.step_tracer import INNER_BACKWARD
from profiler.training.observed_forward import NOT_ONCE


class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The operator numbers of one stage in the last forward of a step and in the backward after it.

    A stage is one or more blocks, or what runs before, between or after blocks. If its last operator is below its
    first, it ran none.
    """

    blocks: tuple[int, ...]  # their indices
    name: str
    first: int
    last: int
    backward_first: int
    backward_last: int
    outputs: frozenset[int]  # indices of the storages that it passes on
    stop: int  # the operator at which a recompute has made all saved tensors and stops
    feeds_next: bool = False  # whether its output goes to the next block and nowhere else


def spans(trace: Trace, blocks: Sequence[str], *, linked: Sequence[bool] = ()) -> list[StageSpan]:
    """Return the stages in forward order; every operator of forward and backward is in one.

    `trace` must have been traced with its saves. In the backward, a stage begins with the first operator of its
    modules, or where its first saved tensor is unpacked. With `linked` (which blocks feed the next alone), a block that
    overwrites its input, or neither keeps it nor saves more than a checkpoint would, is merged with the block before,
    since a cut between them saves nothing. Raises NotOnce if blocks do not run once each, in order.
    """
    pieces = list(_pieces(trace, blocks))
    starts = _starts(trace, blocks, pieces)
    ends = [_last(trace, "backward")[1], *(start - 1 for start in starts[:-1])]  # each ends where the one before begins
    stages = [
        StageSpan(
            blocks=piece.blocks,
            name=piece.name,
            first=piece.first,
            last=piece.last,
            backward_first=start,
            backward_last=end,
            outputs=frozenset(piece.given),
            stop=max((save.packed for save in trace.saves[slice(*piece.saves)]), default=piece.first - 1),
        )
        for piece, start, end in zip(pieces, starts, ends, strict=True)
    ]
    if not linked:
        return stages
    return [
        msgspec.structs.replace(stage, feeds_next=bool(stage.blocks) and linked[stage.blocks[-1]])
        for stage in _merged(trace, stages, linked)
    ]


def refuse_backward_in_forward(trace: Trace) -> None:
    """Raise Unsupported if a forward of the step unpacks what autograd has saved, as only a backward does."""
    forwards = [(first, last) for phase, first, last in trace.spans() if phase == "forward"]
    unpacked = [save.unpacked for save in trace.saves if save.unpacked is not None]
    if any(first <= number < last for number in unpacked for first, last in forwards):
        raise Unsupported(INNER_BACKWARD)


def _merged(trace: Trace, stages: list[StageSpan], linked: Sequence[bool]) -> Iterator[StageSpan]:
    """Yield the stages; a block that overwrites or drops its input and saves no more is one with the block before."""
    before = stages[0]
    for stage in stages[1:]:
        is_next = bool(stage.blocks) and before.last + 1 == stage.first  # nothing runs between them
        if is_next and before.blocks and linked[before.blocks[-1]] and _passes(trace, before, stage):
            before = msgspec.structs.replace(
                stage,
                blocks=before.blocks + stage.blocks,
                name=f"{before.name.partition('-')[0]}-{stage.name}",
                first=before.first,
                backward_last=before.backward_last,
                stop=max(before.stop, stage.stop),
            )
            continue
        yield before
        before = stage
    yield before


def _passes(trace: Trace, before: StageSpan, stage: StageSpan) -> bool:
    if before.outputs & stage.outputs:
        return True
    given = [trace.allocations[place] for place in before.outputs]
    if all(held.died > stage.last for held in given):
        return False
    own = [
        allocation.nbytes
        for place, allocation in enumerate(trace.allocations)
        if stage.first <= allocation.born <= stage.last < stage.backward_first <= allocation.died
        and place not in stage.outputs
    ]
    return sum(own) <= sum(held.nbytes for held in given)


class _Piece(NamedTuple):
    """The forward of a stage."""

    blocks: tuple[int, ...]
    name: str
    first: int
    last: int
    saves: tuple[int, int]
    given: tuple[int, ...]  # indices of output storages; outside of blocks, the inputs of the next block


def _last(trace: Trace, phase: str) -> tuple[int, int]:
    """Return the first and last operator of the last forward or backward."""
    return [(first, last) for name, first, last in trace.spans() if name == phase][-1]


def _pieces(trace: Trace, blocks: Sequence[str]) -> Iterator[_Piece]:
    """Yield the blocks in forward order, and whatever runs before, between and after them."""
    at, end = _last(trace, "forward")
    inside = [call for call in trace.calls if call.before >= at - 1 and call.module in blocks]
    outermost = {(call.module, call.last): call for call in inside}  # a checkpointed block calls itself; both end alike
    calls = sorted(outermost.values(), key=lambda call: call.last)
    if [call.module for call in calls] != list(blocks) or any(a.last > b.before for a, b in pairwise(calls)):
        raise NotOnce(NOT_ONCE)
    done, name = bisect_left(trace.saves, at - 1, key=lambda save: save.packed), ""
    for index, call in enumerate(calls):
        if call.before >= at:
            between = f"between {name} and {call.module}" if name else f"before {call.module}"
            yield _Piece((), between, at, call.before, (done, call.saves[0]), call.inputs)
        yield _Piece((index,), call.module, call.before + 1, call.last, call.saves, call.outputs)
        at, done, name = call.last + 1, call.saves[1], call.module
    yield _Piece((), f"after {name}", at, end, (done, len(trace.saves)), ())


def _starts(trace: Trace, blocks: Sequence[str], pieces: list[_Piece]) -> list[int]:
    """Return the first backward operator of each stage: the last stage begins the backward, an unseen one is empty."""
    stage = stage_of(tuple(blocks))
    begin, end = _last(trace, "backward")
    first_of: dict[str, int] = {}
    for number, operator in enumerate(trace.operators[begin - 1 : end], start=begin):
        first_of.setdefault(stage(operator.module), number)
    starts, at = list[int](), end + 1
    for piece in pieces[:-1]:
        unpacking = [save.unpacked + 1 for save in trace.saves[slice(*piece.saves)] if save.unpacked is not None]
        own = [first_of[piece.name]] if piece.blocks and piece.name in first_of else []
        at = min((at, *unpacking, *own))  # a stage begins no later than the one before it, which runs after it
        starts.append(at)
    return [*starts, min(at, begin)]


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
    by_birth: dict[int, list[int]] = {}
    for place, allocation in enumerate(trace.allocations):
        by_birth.setdefault(allocation.born, []).append(place)
    made = [(one.nbytes, one.born) for one in trace.allocations if one.category == "gradients"]
    between = ((one.nbytes, one.born, max(one.born, one.died) - 1) for one in trace.allocations)
    alive, rest = live(trace), summed(between, len(trace.operators))  # the latter after each operator has ended
    counted, later = [], 0
    for stage, before in zip(stages[::-1], [*stages[-2::-1], None], strict=True):
        own = [place for number in range(stage.first, stage.last + 1) for place in by_birth.get(number, ())]
        gradients = sum(nbytes for nbytes, born in made if stage.backward_first <= born <= stage.backward_last)
        later += gradients
        backward = max(alive[stage.backward_first : stage.backward_last + 1], default=0)
        backward -= rest[stage.first - 1] + later
        counted.append(_held(trace, stage, own, before, gradients=gradients, backward=backward))
    return counted[::-1]


def floor_bytes(trace: Trace) -> int:
    """Return the peak outside of forward and backward: in the optimizer's step, or where gradients are zeroed."""
    alive = live(trace)
    inside = {"forward", "backward"}
    return max(
        (max(alive[first : last + 1], default=0) for phase, first, last in trace.spans() if phase not in inside),
        default=0,
    )


def _held(
    trace: Trace, stage: StageSpan, own: list[int], before: StageSpan | None, *, gradients: int, backward: int
) -> StageBytes:
    """Return the bytes of one stage, which allocates its `own` and follows `before`.

    `gradients` are of its parameters, and `backward` is the most that its backward adds to what was live before its
    forward and the gradients of its and later parameters. Planners count an output as held until the next stage's
    backward; inputs that a pinned stage does not keep, as `cat` keeps no block's output, are deducted from its saves.
    """
    own_outputs = [trace.allocations[place] for place in own if place in stage.outputs]
    outputs = sum(one.nbytes for one in own_outputs)
    kept = (trace.allocations[place] for place in own if place not in stage.outputs)
    saved = outputs + sum(one.nbytes for one in kept if one.died > stage.last)
    own_saved = saved - sum(one.nbytes for one in own_outputs if one.died < stage.backward_first)
    inputs = [trace.allocations[place] for place in before.outputs] if before and not stage.blocks else []
    gone = sum(one.nbytes for one in inputs if before and before.first <= one.born and one.died <= stage.last)
    taken = min(gone, saved)
    return StageBytes(
        output_bytes=outputs,
        saved_bytes=saved - taken,
        own_saved_bytes=min(own_saved, saved - taken),
        forward_extra_bytes=max(0, _peak(trace, stage, own, saving=True) - saved) + taken,
        plain_forward_extra_bytes=max(0, _peak(trace, stage, own, saving=False) - outputs),
        backward_extra_bytes=backward - outputs - min(own_saved, saved - taken),
        gradient_bytes=gradients,
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
