"""Derives the trace of a checkpointed step from that of the step without checkpoints: arithmetic, without torch.

The rules are those of `torch.utils.checkpoint` in its non-reentrant form, with its early stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
from msgspec.structs import replace

from profiler.core.errors import Unsupported
from profiler.core.trace_data import Allocation, Call, Operator, Trace

RANDOM_STATE = 5056  # bytes of torch.get_rng_state(): the Mersenne Twister of the CPU
OUT_OF_PLACE = {"aten.relu_": "aten.relu"}  # in-place operators whose out-of-place form saves the same tensors


def compose(trace: Trace, blocks: Sequence[str], segments: Iterable[Sequence[int]]) -> Trace:
    """Return the trace of the step with `segments` checkpointed, each one or more consecutive indices of `blocks`.

    `trace` is that of the step without checkpointing, traced with its saves. The result has no saves, and cannot be
    composed again. Raises Unsupported if the blocks of a segment do not directly follow each other in the step, or if
    the forward runs a backward, in which a segment would be recomputed.
    """
    assert trace.calls, "follow the step with its saves"
    segments = tuple(segments)
    if segments:
        refuse_backward_in_forward(trace)
    names = [[blocks[index] for index in segment] for segment in segments]
    trace = _keep_inputs(trace, {first for first, *_ in names})
    pieces = sorted((piece for segment in names for piece in _pieces(trace, segment)), key=lambda piece: piece.first)
    if any(before.last >= after.first for before, after in pairwise(pieces)):
        raise Unsupported("runs that overlap cannot be composed")
    moved = _moved(trace, pieces)
    placed = _placed(pieces, moved)
    return replace(
        trace,
        allocations=(
            *_first_lives(trace, placed, moved),
            *_second_lives(trace, placed, moved),
            *_random_states(trace, placed, moved),
        ),
        operators=tuple(_operators(trace, placed)),
        marks=tuple((phase, moved[before]) for phase, before in trace.marks),
        saves=(),
        calls=(),
    )


def refuse_backward_in_forward(trace: Trace) -> None:
    """Raise Unsupported if a forward of the step unpacks what autograd has saved, as only a backward does."""
    forwards = [(first, last) for phase, first, last in trace.spans() if phase == "forward"]
    unpacked = [save.unpacked for save in trace.saves if save.unpacked is not None]
    if any(first <= number < last for number in unpacked for first, last in forwards):
        raise Unsupported("the forward runs a backward of its own: where checkpoints recompute in it is not known")


class _SegmentForward(msgspec.Struct, frozen=True, kw_only=True):
    """A segment in one forward: its operators, of which those up to `stop` are recomputed after `trigger`."""

    module: str  # its first block
    first: int
    last: int
    inputs: tuple[int, ...]
    saves: tuple[int, ...]  # indices into Trace.saves
    stop: int  # the operator after which all saved tensors exist
    trigger: int | None  # the operator after which the backward unpacks the first saved tensor
    released: int  # when the last saved tensor is released, and with it the checkpoint's input
    passed_on: dict[int, int]  # storages passed on within the segment: the last operator of the block that takes them


class _PlacedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment in the composed step; `start`, `end` and `held` are operator numbers of that step."""

    piece: _SegmentForward
    start: int | None  # the operator before the recompute; None if the backward unpacks nothing
    end: int  # the last operator of the recompute
    held: int  # the last operator during which the checkpoint holds its inputs


def _keep_inputs(trace: Trace, firsts: set[str]) -> Trace:
    """Have modules that begin a segment write out of place: the segment is recomputed from their input."""
    for index, call in enumerate(trace.calls):
        if call.module in firsts and _writes_over(trace, call):
            trace = _kept_input(trace, index)
    return trace


def _writes_over(trace: Trace, call: Call) -> bool:
    """Whether the module itself returns a storage that it was given, modified in place."""
    own = [operator for operator in trace.operators[call.before : call.last] if operator.module == call.module]
    is_in_place = any(operator.name.split(".")[1].endswith("_") for operator in own)
    return is_in_place and any(place in call.outputs for place in call.inputs)


def _kept_input(trace: Trace, index: int) -> Trace:
    """Have the module call allocate its result, which later operators use instead of the input."""
    call, new = trace.calls[index], len(trace.allocations)
    operator, first = trace.operators[call.before], call.before + 1
    if operator.name not in OUT_OF_PLACE or call.last != first or len(call.inputs) != 1:
        names = ", ".join(operator.name for operator in trace.operators[call.before : call.last])
        raise Unsupported(f"'{call.module}' writes over its input ({names}): what it would do instead is not known")
    (place,) = call.inputs
    allocations, operators = list(trace.allocations), list(trace.operators)
    operators[call.before] = replace(operator, name=OUT_OF_PLACE[operator.name])
    allocations.append(
        replace(
            allocations[place], born=first, operator=operators[call.before].name, module=call.module, phase="forward"
        )
    )
    allocations[place] = replace(allocations[place], let_go=call.last)
    saves = [
        replace(save, allocation=new) if save.allocation == place and save.packed >= first else save
        for save in trace.saves
    ]
    calls = [
        replace(
            later,
            inputs=_renamed(later.inputs, place, new) if later.before >= first else later.inputs,
            outputs=_renamed(later.outputs, place, new) if later.before >= call.before else later.outputs,
        )
        for later in trace.calls
    ]
    return replace(
        trace, allocations=tuple(allocations), operators=tuple(operators), saves=tuple(saves), calls=tuple(calls)
    )


def _renamed(places: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if place == old else place for place in places)


def _pieces(trace: Trace, names: list[str]) -> Iterator[_SegmentForward]:
    """Yield the segment once for each forward of the step."""
    calls = [[call for call in trace.calls if call.module == name] for name in names]
    for name, ran in zip(names, calls, strict=True):
        if not ran or len(ran) != len(calls[0]):
            raise Unsupported(f"'{name}' ran {len(ran)} times in the step, '{names[0]}' {len(calls[0])} times")
    for chain in zip(*calls, strict=True):
        for before, after in pairwise(chain):
            if before.last != after.before or before.saves[1] != after.saves[0]:
                raise Unsupported(
                    f"'{before.module}' and '{after.module}' cannot be run together: something is between"
                )
        yield _piece(trace, chain)


def _piece(trace: Trace, chain: tuple[Call, ...]) -> _SegmentForward:
    first, last = chain[0], chain[-1]
    places = range(first.saves[0], last.saves[1])
    saves = [trace.saves[place] for place in places]
    passed_on = {place: call.last for call in chain[1:] for place in call.inputs if place not in last.outputs}
    return _SegmentForward(
        module=first.module,
        first=first.before + 1,
        last=last.last,
        inputs=first.inputs,
        saves=tuple(places),
        stop=max((save.packed for save in saves), default=first.before),
        trigger=min((save.unpacked for save in saves if save.unpacked is not None), default=None),
        released=max((save.released for save in saves), default=last.last),
        passed_on=passed_on,
    )


def _moved(trace: Trace, pieces: list[_SegmentForward]) -> list[int]:
    """Return the new number of every operator, by its old one."""
    inserted = [0] * (len(trace.operators) + 1)
    for piece in pieces:
        if piece.trigger is not None:
            inserted[piece.trigger] += piece.stop - piece.first + 1
    return [old + before for old, before in enumerate(accumulate(inserted[:-1], initial=0))]


def _placed(pieces: list[_SegmentForward], moved: list[int]) -> list[_PlacedSegment]:
    """Place the segments, in forward order. Of recomputes with one trigger, that of the later segment comes first."""
    placed, ends = [], dict[int, int]()
    for piece in reversed(pieces):
        start, end = None, 0
        if piece.trigger is not None:
            start = ends.get(piece.trigger, moved[piece.trigger])
            end = ends[piece.trigger] = start + piece.stop - piece.first + 1
        held = max(moved[piece.released], moved[piece.last], end)
        placed.append(_PlacedSegment(piece=piece, start=start, end=end, held=held))
    return placed[::-1]


def _first_lives(trace: Trace, placed: list[_PlacedSegment], moved: list[int]) -> Iterator[Allocation]:
    """Yield the original allocations, without what autograd saved in segments, with what checkpoints hold."""
    let_go = _let_go(trace, placed)
    ends = [moved[old] for old in let_go]
    within = {place: segment.piece for segment in placed for place in segment.piece.saves}
    for place, save in enumerate(trace.saves):
        piece = within.get(place)
        if save.allocation is None or (piece and trace.allocations[save.allocation].born >= piece.first):
            continue
        ends[save.allocation] = max(ends[save.allocation], moved[save.used if piece else save.released])
    for segment in placed:
        for place in segment.piece.inputs:
            ends[place] = max(ends[place], segment.held)
    forward_ends = _forward_ends(trace)
    for allocation, end in zip(trace.allocations, ends, strict=True):
        category = allocation.category
        if category in ("saved", "temporaries") and allocation.phase == "forward":
            category = "saved" if end > moved[forward_ends[allocation.born]] else "temporaries"
        yield replace(allocation, born=moved[allocation.born], died=end, category=category, let_go=None)


def _let_go(trace: Trace, placed: list[_PlacedSegment]) -> list[int]:
    """Return when only autograd holds each storage. In a segment, only the next block holds a block's output."""
    ends = [life.died if life.let_go is None else life.let_go for life in trace.allocations]
    for segment in placed:
        for place, last in segment.piece.passed_on.items():
            if trace.allocations[place].born >= segment.piece.first:
                ends[place] = min(ends[place], last)
    return ends


def _forward_ends(trace: Trace) -> list[int]:
    """Return, by operator, the last operator of its forward; 0 outside of forwards."""
    ends = [0] * (len(trace.operators) + 1)
    for phase, first, last in trace.spans():
        if phase == "forward":
            ends[first : last + 1] = [last] * (last + 1 - first)
    return ends


def _second_lives(trace: Trace, placed: list[_PlacedSegment], moved: list[int]) -> Iterator[Allocation]:
    """Yield the recomputed allocations: saved ones live until used, others at most until the recompute ends."""
    again = {number: segment for segment in placed if segment.start is not None for number in _numbers(segment.piece)}
    saved, let_go = _saved_until(trace, placed, moved), _let_go(trace, placed)
    for place, allocation in enumerate(trace.allocations):
        if allocation.phase != "forward" or allocation.born not in again:
            continue
        where = again[allocation.born]
        assert where.start is not None
        later = where.start - where.piece.first + 1
        end = max(min(let_go[place], where.piece.stop) + later, saved.get((where.piece.first, place), 0))
        yield replace(
            allocation,
            born=allocation.born + later,
            died=end,
            phase="recompute",
            category="recomputed" if end > where.end else "temporaries",
            let_go=None,
        )


def _numbers(piece: _SegmentForward) -> range:
    """Return the numbers of the operators that are recomputed."""
    return range(piece.first, piece.stop + 1)


def _saved_until(trace: Trace, placed: list[_PlacedSegment], moved: list[int]) -> dict[tuple[int, int], int]:
    """Return how long a segment's nodes keep each storage, by the segment's first operator and the storage."""
    until: dict[tuple[int, int], int] = {}
    for segment in placed:
        for save in (trace.saves[place] for place in segment.piece.saves):
            if save.allocation is not None:
                key = segment.piece.first, save.allocation
                until[key] = max(until.get(key, segment.end), moved[save.used])
    return until


def _caller(module: str, called: set[str]) -> str:
    """Return the module that calls another under a checkpoint: the nearest ancestor that is called itself."""
    above = module.rpartition(".")[0]
    while above and above not in called:
        above = above.rpartition(".")[0]
    return above


def _random_states(trace: Trace, placed: list[_PlacedSegment], moved: list[int]) -> Iterator[Allocation]:
    """Yield RNG states, which no operator makes on a CPU: one per checkpoint, and one to restore after a recompute."""
    if trace.device != "cpu":
        return
    forward_ends = _forward_ends(trace)
    called = {call.module for call in trace.calls}
    for segment in placed:
        first = segment.piece.first
        category = "saved" if segment.held > moved[forward_ends[first]] else "temporaries"
        caller = _caller(segment.piece.module, called)
        state = Allocation(RANDOM_STATE, moved[first], segment.held, "random state", caller, "forward", category)
        yield state
        if segment.start is not None:
            yield replace(
                state, born=segment.start + 1, died=segment.end, module="", phase="backward", category="temporaries"
            )


def _operators(trace: Trace, placed: list[_PlacedSegment]) -> Iterator[Operator]:
    """Yield the original operators, with the recomputed ones inserted."""
    done = 0
    for segment in sorted(
        (segment for segment in placed if segment.start is not None), key=lambda segment: segment.start or 0
    ):
        assert segment.piece.trigger is not None
        yield from trace.operators[done : segment.piece.trigger]
        for number in _numbers(segment.piece):
            yield replace(trace.operators[number - 1], phase="recompute")
        done = segment.piece.trigger
    yield from trace.operators[done:]
