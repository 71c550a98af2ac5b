"""A traced step replayed by the simulated allocator, without torch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from profiler.core.trace_data import Allocation, Building, Operator, Trace
from profiler.predicting.trace.allocator import CachingAllocator, MemoryBlock, Settings

Lifetime = tuple[int, int, int]  # an allocation's index in its trace, and the operators with which it begins and ends


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A second step as the allocator counts it. Bytes."""

    trace: Trace  # the bytes of every storage are those of its block; `unsplit` of them were not asked for
    reserved: dict[str, int]  # the largest in each phase


def replay(trace: Trace, settings: Settings) -> Replayed:
    """The second step with the blocks that the allocator gives it, after the building of the model and a first step.

    The allocator is empty before the building. The first step has no gradients before it, and no optimizer state before
    its optimizer's phase; gradients that are accumulated over steps are allocated with that state. Storages are
    allocated in the order of their birth and freed after the operator with which they die. An operator's outputs are
    allocated before its hidden bytes, as in aten/src/ATen/native/cuda/Blas.cpp and cudnn/ConvShared.cpp.
    """
    blocks = _Blocks(CachingAllocator(settings))
    if trace.building:
        blocks.build(trace.building)
    blocks.run(trace, _first_step(trace, blocks.held))
    second = blocks.run(trace, _second_step(trace, blocks.held))
    return Replayed(
        trace=_with_blocks(trace, second),
        # nothing is given back to the device, so that the last value of a phase is its largest
        reserved={phase: second.reserved[last] for phase, _, last in trace.spans()},
    )


class _ReplayedStep(msgspec.Struct):
    """What one replay gives: the sizes of blocks, and the reserved bytes."""

    sizes: dict[int, int]  # by the index of the allocation
    hidden: list[int]  # of what operators hide; by operator, 0 being before the step
    reserved: list[int]  # after each operator, 0 being before the step


class _Blocks:
    """The blocks of a trace's storages; `held` has those that are in use, by the index of the allocation."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.held: dict[int, MemoryBlock] = {}
        self._allocator = allocator

    def build(self, building: Building) -> None:
        """Replay the building of the model; what it leaves to the step is held by its index in the step's trace."""
        last = len(building.operators)
        kept = {index: place for index, place in enumerate(building.places) if place is not None}
        lives = [
            (index, made.born, last + 1 if index in kept else min(made.died, last))
            for index, made in enumerate(building.allocations)
        ]
        self.run(building, lives)
        self.held = {kept[index]: block for index, block in self.held.items()}

    def run(self, trace: Trace | Building, lives: Iterable[Lifetime]) -> _ReplayedStep:
        """Allocate and free as these lives say."""
        allocator, held = self._allocator, self.held
        step = _ReplayedStep({index: block.size for index, block in held.items()}, [], [])
        born, died = _by_operator(lives, len(trace.operators))
        for number in range(len(trace.operators) + 1):
            for index in born[number]:
                allocation = trace.allocations[index]
                block = held[index] = allocator.allocate(allocation.nbytes, allocation.stream)
                step.sizes[index] = block.size
            step.hidden.append(self._hide(trace.operators[number - 1]) if number else 0)
            for index in died[number]:
                allocator.free(held.pop(index), trace.allocations[index].stream)
            step.reserved.append(allocator.reserved)
        return step

    def _hide(self, operator: Operator) -> int:
        """Allocate and free what an operator takes while it runs; returns the bytes of those blocks."""
        requests = operator.requests or (operator.hidden_bytes,)
        blocks = [self._allocator.allocate(nbytes) for nbytes in requests if nbytes]
        size = sum(block.size for block in blocks)  # before they are freed: then they grow by their free neighbours
        for block in blocks:
            self._allocator.free(block)
        return size


def _with_blocks(trace: Trace, step: _ReplayedStep) -> Trace:
    """The trace with the bytes of blocks in place of those that were asked for; the building is left out."""
    allocations, operators = list(trace.allocations), list(trace.operators)
    for index, size in step.sizes.items():
        unsplit = size - allocations[index].nbytes
        if unsplit:
            allocations[index] = replace(allocations[index], nbytes=size, unsplit=unsplit)
    for place, size in enumerate(step.hidden[1:]):
        unsplit = size - operators[place].hidden_bytes
        if unsplit:
            operators[place] = replace(operators[place], hidden_bytes=size, unsplit=unsplit)
    return replace(trace, allocations=tuple(allocations), operators=tuple(operators), building=None)


def _first_step(trace: Trace, held: dict[int, MemoryBlock]) -> list[Lifetime]:
    last = len(trace.operators)
    optimizer = min(last, next((before + 1 for phase, before in trace.marks if phase == "optimizer"), last))
    lives = []
    for index, allocation in enumerate(trace.allocations):
        is_later = not allocation.born and allocation.category in ("gradients", "optimizer")
        if index not in held:
            lives.append((index, optimizer if is_later else allocation.born, _died(allocation, last)))
    return lives


def _second_step(trace: Trace, held: dict[int, MemoryBlock]) -> list[Lifetime]:
    """Gradients from before the step that are not held were the first step's: this one begins by freeing them."""
    return [
        (index, allocation.born, _died(allocation, len(trace.operators)))
        for index, allocation in enumerate(trace.allocations)
        if index not in held and (allocation.born or allocation.category != "gradients")
    ]


def _died(allocation: Allocation, last: int) -> int:
    """The operator with which it is freed: beyond the last one for what is there before the step and after it."""
    return allocation.died if allocation.born or allocation.died < last else last + 1


def _by_operator(lives: Iterable[Lifetime], last: int) -> tuple[list[list[int]], list[list[int]]]:
    """The indices of the allocations that begin with each operator, and of those that end with it."""
    born: list[list[int]] = [[] for _ in range(last + 2)]
    died: list[list[int]] = [[] for _ in range(last + 2)]
    for index, begin, end in lives:
        if begin <= end:  # otherwise it is gone before the operator runs
            born[begin].append(index)
            died[end].append(index)
    return born, died
