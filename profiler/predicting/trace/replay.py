"""Replays a traced step on the simulated allocator, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from profiler.core.trace_data import Allocation, Building, Operator, Trace
from profiler.predicting.trace.allocator import CachingAllocator, MemoryBlock, Settings, read_settings

Lifetime = tuple[int, int, int]  # an allocation's index in its trace, and the first and last operator of its lifetime


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A second training step with the allocator's block sizes. Bytes."""

    trace: Trace  # every storage has the bytes of its block, of which `unsplit` were not requested
    reserved: dict[str, int]  # the most in each phase


def allocated(trace: Trace) -> tuple[Trace, dict[str, int] | None]:
    """Return the trace with the block sizes of CUDA's caching allocator in a second step, and reserved bytes by phase.

    A measurement takes the second step, too. The environment configures the allocator, as in a run. On the CPU the
    trace is returned unchanged, and the reserved bytes are None.
    """
    if trace.device != "cuda":
        return trace, None
    replayed = replay(trace, read_settings(os.environ))
    return replayed.trace, replayed.reserved


def replay(trace: Trace, settings: Settings) -> Replayed:
    """Replay the building of the model and two steps; return the second step with its allocator blocks.

    The allocator starts empty. The first step begins without gradients, and without optimizer state until its optimizer
    phase; gradients that are accumulated over steps are allocated with that state. Storages are allocated in the order
    of their birth and freed after the last operator of their lifetime. An operator's outputs are allocated before its
    hidden bytes, as in aten/src/ATen/native/cuda/Blas.cpp and cudnn/ConvShared.cpp.
    """
    blocks = _Blocks(CachingAllocator(settings))
    if trace.building:
        blocks.build(trace.building)
    blocks.run(trace, _first_step(trace, blocks.held))
    second = blocks.run(trace, _second_step(trace, blocks.held))
    return Replayed(
        trace=_with_blocks(trace, second),
        # no memory is given back to the device, so the last value of a phase is its largest
        reserved={phase: second.reserved[last] for phase, _, last in trace.spans()},
    )


class _ReplayedStep(msgspec.Struct):
    """The result of one replay: block sizes and reserved bytes."""

    sizes: dict[int, int]  # by the index of the allocation
    hidden: list[int]  # block sizes of operators' hidden bytes, by operator; index 0 is before the step
    reserved: list[int]  # after each operator; index 0 is before the step


class _Blocks:
    """The allocator's blocks for a trace's storages; `held` has those in use, by the index of the allocation."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.held: dict[int, MemoryBlock] = {}
        self._allocator = allocator

    def build(self, building: Building) -> None:
        """Replay the building of the model; blocks that outlive it are held by their index in the step's trace."""
        last = len(building.operators)
        kept = {index: place for index, place in enumerate(building.places) if place is not None}
        lives = [
            (index, made.born, last + 1 if index in kept else min(made.died, last))
            for index, made in enumerate(building.allocations)
        ]
        self.run(building, lives)
        self.held = {kept[index]: block for index, block in self.held.items()}

    def run(self, trace: Trace | Building, lives: Iterable[Lifetime]) -> _ReplayedStep:
        """Allocate and free blocks for these lifetimes."""
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
        """Allocate and free an operator's hidden bytes; return the bytes of their blocks."""
        requests = operator.requests or (operator.hidden_bytes,)
        blocks = [self._allocator.allocate(nbytes) for nbytes in requests if nbytes]
        size = sum(block.size for block in blocks)  # read before `free`, which merges blocks with free neighbors
        for block in blocks:
            self._allocator.free(block)
        return size


def _with_blocks(trace: Trace, step: _ReplayedStep) -> Trace:
    """Return the trace with block sizes in place of requested bytes, without its building."""
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
    """Return the lifetimes in the second step. Old gradients that are not held get none: it begins by freeing them."""
    return [
        (index, allocation.born, _died(allocation, len(trace.operators)))
        for index, allocation in enumerate(trace.allocations)
        if index not in held and (allocation.born or allocation.category != "gradients")
    ]


def _died(allocation: Allocation, last: int) -> int:
    """Return the last operator of the lifetime; beyond the step's last one for what is live before and after it."""
    return allocation.died if allocation.born or allocation.died < last else last + 1


def _by_operator(lives: Iterable[Lifetime], last: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return, by operator, the indices of the allocations that begin with it, and of those that end with it."""
    born: list[list[int]] = [[] for _ in range(last + 2)]
    died: list[list[int]] = [[] for _ in range(last + 2)]
    for index, begin, end in lives:
        if begin <= end:  # otherwise it is freed before the operator runs
            born[begin].append(index)
            died[end].append(index)
    return born, died
