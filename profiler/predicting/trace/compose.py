"""The trace of a checkpointed step from the trace of the step without: arithmetic, without torch.

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
OUT_OF_PLACE = {"aten.relu_": "aten.relu"}  # in-place operators whose other form saves the same


def compose(trace: Trace, blocks: Sequence[str], runs: Iterable[Sequence[int]]) -> Trace:
    """The step with runs of its blocks checkpointed; a run is one or more consecutive indices of `blocks`.

    `trace` is of the step without checkpointing, followed with its saves. What comes out has none, and cannot be
    composed again. Raises Unsupported where the blocks of a run do not follow each other in the step.
    """
    assert trace.calls, "follow the step with its saves"
    names = [[blocks[index] for index in run] for run in runs]
    trace = _keep_inputs(trace, {first for first, *_ in names})
    pieces = sorted((piece for run in names for piece in _pieces(trace, run)), key=lambda piece: piece.first)
    if any(one.last >= other.first for one, other in pairwise(pieces)):
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
        building=None,
    )


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A run as one forward ran it: its operators, and those up to `stop` that are run again after `trigger`."""

    module: str  # its first block
    first: int
    last: int
    inputs: tuple[int, ...]
    saves: tuple[int, ...]  # places in Trace.saves
    stop: int  # after it, all that was saved is there
    trigger: int | None  # the operator of the backward after which the first saved tensor is asked for
    released: int  # when nothing is saved any more, and the checkpoint lets go of its input
    passed_on: dict[int, int]  # what is only given from one block to the next, and the last operator of that


class _Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A piece in the new step; all by new numbers."""

    piece: _Piece
    start: int | None  # the operator before those that are run again; None where the backward asks for nothing
    end: int  # the last of those
    held: int  # the last operator that the checkpoint is there for


def _keep_inputs(trace: Trace, firsts: set[str]) -> Trace:
    """A module that begins a run does not write over its input, from which the run is computed again."""
    for index, call in enumerate(trace.calls):
        if call.module in firsts and _writes_over(trace, call):
            trace = _kept_input(trace, index)
    return trace


def _writes_over(trace: Trace, call: Call) -> bool:
    """Whether the module itself gives back the storage that it was given, written to."""
    own = [one for one in trace.operators[call.before : call.last] if one.module == call.module]
    return any(place in call.outputs for place in call.inputs) and any(_is_in_place(one) for one in own)


def _is_in_place(operator: Operator) -> bool:
    return operator.name.split(".")[1].endswith("_")


def _kept_input(trace: Trace, index: int) -> Trace:
    """The module makes a storage instead, which is read from then on."""
    call, new = trace.calls[index], len(trace.allocations)
    operator, first = trace.operators[call.before], call.before + 1
    if operator.name not in OUT_OF_PLACE or call.last != first or len(call.inputs) != 1:
        names = ", ".join(one.name for one in trace.operators[call.before : call.last])
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
            one,
            inputs=_renamed(one.inputs, place, new) if one.before >= first else one.inputs,
            outputs=_renamed(one.outputs, place, new) if one.before >= call.before else one.outputs,
        )
        for one in trace.calls
    ]
    return replace(
        trace, allocations=tuple(allocations), operators=tuple(operators), saves=tuple(saves), calls=tuple(calls)
    )


def _renamed(places: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if place == old else place for place in places)


def _pieces(trace: Trace, names: list[str]) -> Iterator[_Piece]:
    """One for each forward of the step."""
    calls = [[call for call in trace.calls if call.module == name] for name in names]
    for name, found in zip(names, calls, strict=True):
        if not found or len(found) != len(calls[0]):
            raise Unsupported(f"'{name}' ran {len(found)} times in the step, '{names[0]}' {len(calls[0])} times")
    for chain in zip(*calls, strict=True):
        for one, other in pairwise(chain):
            if one.last != other.before or one.saves[1] != other.saves[0]:
                raise Unsupported(f"'{one.module}' and '{other.module}' cannot be run together: something is between")
        yield _piece(trace, chain)


def _piece(trace: Trace, chain: tuple[Call, ...]) -> _Piece:
    first, last = chain[0], chain[-1]
    places = range(first.saves[0], last.saves[1])
    saves = [trace.saves[place] for place in places]
    passed_on = {place: call.last for call in chain[1:] for place in call.inputs if place not in last.outputs}
    return _Piece(
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


def _moved(trace: Trace, pieces: list[_Piece]) -> list[int]:
    """The new number of every operator, by its old one."""
    inserted = [0] * (len(trace.operators) + 1)
    for piece in pieces:
        if piece.trigger is not None:
            inserted[piece.trigger] += piece.stop - piece.first + 1
    return [old + before for old, before in enumerate(accumulate(inserted[:-1], initial=0))]


def _placed(pieces: list[_Piece], moved: list[int]) -> list[_Placed]:
    """The pieces in the order of their forwards. Of two that begin at once in the backward, the later comes first."""
    found, taken = [], dict[int, int]()
    for piece in reversed(pieces):
        start, end = None, 0
        if piece.trigger is not None:
            start = taken.get(piece.trigger, moved[piece.trigger])
            end = taken[piece.trigger] = start + piece.stop - piece.first + 1
        held = max(moved[piece.released], moved[piece.last], end)
        found.append(_Placed(piece=piece, start=start, end=end, held=held))
    return found[::-1]


def _first_lives(trace: Trace, placed: list[_Placed], moved: list[int]) -> Iterator[Allocation]:
    """Everything as it is without what autograd keeps of the pieces, and with what the checkpoints hold."""
    let_go = _let_go(trace, placed)
    ends = [moved[old] for old in let_go]
    within = {place: one.piece for one in placed for place in one.piece.saves}
    for place, save in enumerate(trace.saves):
        piece = within.get(place)
        if save.allocation is None or (piece and trace.allocations[save.allocation].born >= piece.first):
            continue
        ends[save.allocation] = max(ends[save.allocation], moved[save.used if piece else save.released])
    for one in placed:
        for place in one.piece.inputs:
            ends[place] = max(ends[place], one.held)
    forward_ends = _forward_ends(trace)
    for allocation, end in zip(trace.allocations, ends, strict=True):
        category = allocation.category
        if category in ("saved", "temporaries") and allocation.phase == "forward":
            category = "saved" if end > moved[forward_ends[allocation.born]] else "temporaries"
        yield replace(allocation, born=moved[allocation.born], died=end, category=category, let_go=None)


def _let_go(trace: Trace, placed: list[_Placed]) -> list[int]:
    """When all but autograd lets go of every storage: within a run, nobody but the next block is given a block's."""
    found = [one.died if one.let_go is None else one.let_go for one in trace.allocations]
    for one in placed:
        for place, last in one.piece.passed_on.items():
            if trace.allocations[place].born >= one.piece.first:
                found[place] = min(found[place], last)
    return found


def _forward_ends(trace: Trace) -> list[int]:
    """By operator: the last one of the forward that it is in; 0 outside of forwards."""
    found = [0] * (len(trace.operators) + 1)
    for phase, first, last in trace.spans():
        if phase == "forward":
            found[first : last + 1] = [last] * (last + 1 - first)
    return found


def _second_lives(trace: Trace, placed: list[_Placed], moved: list[int]) -> Iterator[Allocation]:
    """What the pieces make again: saved until it was, everything else until they end at the latest."""
    again = {number: one for one in placed if one.start is not None for number in _numbers(one.piece)}
    saved, let_go = _saved_until(trace, placed, moved), _let_go(trace, placed)
    for place, one in enumerate(trace.allocations):
        if one.phase != "forward" or one.born not in again:
            continue
        where = again[one.born]
        assert where.start is not None
        later = where.start - where.piece.first + 1
        end = max(min(let_go[place], where.piece.stop) + later, saved.get((where.piece.first, place), 0))
        yield replace(
            one,
            born=one.born + later,
            died=end,
            phase="recompute",
            category="recomputed" if end > where.end else "temporaries",
            let_go=None,
        )


def _numbers(piece: _Piece) -> range:
    """The operators that are run again."""
    return range(piece.first, piece.stop + 1)


def _saved_until(trace: Trace, placed: list[_Placed], moved: list[int]) -> dict[tuple[int, int], int]:
    """By the piece's first operator and the storage: until when the piece's nodes keep it."""
    found: dict[tuple[int, int], int] = {}
    for one in placed:
        for save in (trace.saves[place] for place in one.piece.saves):
            if save.allocation is not None:
                key = one.piece.first, save.allocation
                found[key] = max(found.get(key, one.end), moved[save.used])
    return found


def _random_states(trace: Trace, placed: list[_Placed], moved: list[int]) -> Iterator[Allocation]:
    """On a CPU, where no operator makes them: each checkpoint's, and the one to go back to after a recompute."""
    if trace.device != "cpu":
        return
    forward_ends = _forward_ends(trace)
    for one in placed:
        first = one.piece.first
        category = "saved" if one.held > moved[forward_ends[first]] else "temporaries"
        yield Allocation(RANDOM_STATE, moved[first], one.held, "random state", one.piece.module, "forward", category)
        if one.start is not None:
            yield Allocation(RANDOM_STATE, one.start + 1, one.end, "random state", "", "backward", "temporaries")


def _operators(trace: Trace, placed: list[_Placed]) -> Iterator[Operator]:
    """The old ones, with those that are run again where they are."""
    done = 0
    for one in sorted((one for one in placed if one.start is not None), key=lambda one: one.start or 0):
        assert one.piece.trigger is not None
        yield from trace.operators[done : one.piece.trigger]
        for number in _numbers(one.piece):
            yield replace(trace.operators[number - 1], phase="recompute")
        done = one.piece.trigger
    yield from trace.operators[done:]
