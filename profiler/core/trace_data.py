"""What a traced step allocated, as plain data: its fields, and sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import msgspec

STATIC = ("parameters", "buffers", "gradients", "optimizer", "inputs")
WORKSPACES = "workspaces"  # what libraries keep for themselves
BUCKETS = "communication buckets"  # what gradients are averaged in, where that is not the gradients themselves
GATHERED = "gathered parameters"  # of other ranks, and whole on this one
CATEGORIES = (*STATIC, WORKSPACES, BUCKETS, GATHERED, "saved", "recomputed", "temporaries")

Life = tuple[int, int, int]  # bytes, and the operators with which they are born and die, both included


class Allocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The life of one storage. It is there while the operators `born` to `died` run, both included."""

    nbytes: int  # as the allocator rounds them up
    born: int  # 0: before the step
    died: int  # the number of the last operator where it outlives the step
    operator: str
    module: str  # full name; of a gradient, the parameter's module; "" outside of all modules
    phase: str  # forward, recompute, backward, optimizer, zero; "before" the step
    category: str
    let_go: int | None = None  # the last operator before all but autograd had let go of it; None where not followed
    unsplit: int = 0  # of `nbytes`: what its block has beyond the request, because the allocator did not split it
    stream: int = 0  # CUDA's, in which it was requested: FSDP2 has several, and the allocator keeps their blocks apart
    line: str = ""  # `file.py:12`: the user's line that asked for it; "" where that is not known
    batch_power: int = 1  # its bytes grow with this power of the batch; 0: not at all; 1 where that is not followed


class Operator(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of one operator. Its number is its place in the trace, from 1."""

    name: str
    module: str
    phase: str
    flops: int = 0
    moved_bytes: int = 0  # read and written; 0 where it only makes a view
    hidden_bytes: int = 0  # what it took besides its outputs while it ran, where that is known
    unsplit: int = 0  # of `hidden_bytes`, as in an allocation
    requests: tuple[int, ...] = ()  # of which `hidden_bytes` are the sum, in order; empty: taken as one request
    batch_bytes: int = 0  # of `hidden_bytes`: what half the batch does not take


class Save(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor that one node of autograd keeps for the backward. Times are numbers of operators that had run."""

    allocation: int | None  # the place of its storage in the trace; None where that is not followed
    packed: int
    unpacked: int | None  # None where the backward never asked for it
    used: int  # when the node had done with it
    released: int  # when the node let go of what it had kept, which is a little later


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a module in a forward. It ran the operators after `before` up to `last`."""

    module: str
    before: int
    last: int
    saves: tuple[int, int]  # first and end of its places in Trace.saves
    inputs: tuple[int, ...]  # places of the storages that it was given
    outputs: tuple[int, ...]  # and of those that it gave


class Building(msgspec.Struct, frozen=True):
    """What was allocated before the first step: the model, its batch, and forwards that a strategy ran to observe it.

    `places` has, for each allocation, its index in the trace of the step; None where it was freed before the step.
    """

    allocations: tuple[Allocation, ...]
    operators: tuple[Operator, ...]
    places: tuple[int | None, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `marks` are the phases in order, each with the number of the last operator before it.

    `saves`, in the order of packing, and `calls` are there where they were asked for.
    """

    allocations: tuple[Allocation, ...]
    operators: tuple[Operator, ...]
    marks: tuple[tuple[str, int], ...]
    device: str = "cpu"
    uses_host: bool = False  # something was moved to the host and back
    saves: tuple[Save, ...] = ()
    calls: tuple[Call, ...] = ()
    building: Building | None = None  # None where it was not followed

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Every phase with its first and last operator, in order; the last is below the first where nothing ran."""
        for (phase, before), (_, last) in pairwise(self.marks):
            yield phase, before + 1, last


class BlockChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that a model offers, and what checkpointing of them comes to. Bytes."""

    pattern: str  # of `--blocks`; "" for what is found without it
    num_blocks: int
    floor_bytes: int
    all_bytes: int | None  # the peak with each of them checkpointed by itself; None where that cannot be worked out


class BlockChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a case, and the coarser and finer ones that its model has besides."""

    own: BlockChoice
    others: tuple[BlockChoice, ...] = ()


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A traced case: its step, and what the strategy did to its blocks."""

    trace: Trace
    blocks: tuple[str, ...]
    split: str | None = None
    has_own_optimizer: bool = False  # the model brought it
    remarks: tuple[str, ...] = ()
    choices: BlockChoices | None = None  # where they were asked for


Part = TypeVar("Part", Allocation, Operator)


def recompute_ends(operators: Sequence[Operator]) -> list[int]:
    """The last operator of the recompute that each operator is in, by their numbers; its own number outside of one.

    Gradients are off where a checkpoint packs what it computes again: its detached inputs belong to the recompute.
    """
    ends = [0] * (len(operators) + 2)
    for number in range(len(operators), 0, -1):
        after = operators[number] if number < len(operators) else None
        goes_on = after is not None and (after.phase == "recompute" or after.name == "aten.detach")
        ends[number] = ends[number + 1] if goes_on else number
    return ends


def live(trace: Trace) -> list[int]:
    """The bytes that are there while each operator runs, its hidden ones included; index 0 is before the step."""
    lives = ((allocation.nbytes, allocation.born, allocation.died) for allocation in trace.allocations)
    held = summed(lives, len(trace.operators))
    return [
        held[0],
        *(bytes_ + operator.hidden_bytes for bytes_, operator in zip(held[1:], trace.operators, strict=True)),
    ]


def summed(lives: Iterable[Life], num_operators: int) -> list[int]:
    """The bytes of all lives that are there while each operator runs; index 0 is before the step."""
    change = [0] * (num_operators + 2)
    for nbytes, born, died in lives:
        change[born] += nbytes
        change[died + 1] -= nbytes
    return list(accumulate(change[:-1]))


def resting(trace: Trace, after: int) -> int:
    """The bytes that are there when an operator has ended and the next has not begun: no outputs, nothing freed."""
    return sum(allocation.nbytes for allocation in trace.allocations if allocation.born <= after < allocation.died)


def as_asked(trace: Trace) -> Trace:
    """The step with the bytes that were requested, without the unsplit rest of their blocks."""
    return msgspec.structs.replace(
        trace,
        allocations=tuple(_as_asked(allocation, "nbytes") for allocation in trace.allocations),
        operators=tuple(_as_asked(operator, "hidden_bytes") for operator in trace.operators),
    )


def _as_asked(part: Part, field: str) -> Part:
    """An allocation or an operator, with the bytes of this field as they were requested."""
    if not part.unsplit:
        return part
    return msgspec.structs.replace(part, **{field: getattr(part, field) - part.unsplit}, unsplit=0)


def held_at(trace: Trace, operator: int) -> list[Allocation]:
    """What is there while an operator runs, the largest first."""
    held = [allocation for allocation in trace.allocations if allocation.born <= operator <= allocation.died]
    return sorted(held, key=lambda allocation: -allocation.nbytes)


def by_category(trace: Trace) -> dict[str, list[int]]:
    """The bytes of each category while each operator runs; what operators hide counts as temporaries."""
    lives: dict[str, list[Life]] = {category: [] for category in CATEGORIES}
    for allocation in trace.allocations:
        lives[allocation.category].append((allocation.nbytes, allocation.born, allocation.died))
    held = {category: summed(of_category, len(trace.operators)) for category, of_category in lives.items()}
    for number, operator in enumerate(trace.operators, start=1):
        held["temporaries"][number] += operator.hidden_bytes
    return held
