"""A simulation of PyTorch's caching allocator for CUDA, and its replay of traced steps: knows nothing of torch.

The rules are those of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from profiler.core.trace_data import Allocation, Building, Operator, Trace
from profiler.predicting.trace.memory_pools import (
    GRANULE,
    NO_LIMIT,
    USED,
    Block,
    ExpandablePool,
    Pool,
    SegmentPool,
    round_up,
)
from profiler.predicting.trace.settings import NUM_INTERVALS, Settings

SMALL_REQUEST = 2**20  # bytes: the largest request that the small pool serves
SMALL_PAGE = 2 * 2**20  # bytes: a segment of the small pool
LARGE_PAGE = 20 * 2**20  # bytes: a segment that large requests below 10 MiB share
LARGE_REMAINDER = SMALL_REQUEST + GRANULE  # bytes: what is left of a large block stays with it up to 1 MiB
LARGE_BASE = LARGE_PAGE * 2**24  # the first address of the large pool, beyond all of the small one's

DEFAULT = Settings()

Life = tuple[int, int, int]  # an allocation's index in its trace, and the operators with which it begins and ends


class OutOfMemory(Exception):
    """A request that does not fit into the capacity, even after everything cached was returned."""

    def __init__(self, nbytes: int, *, reserved: int, capacity: int) -> None:
        super().__init__(f"{nbytes} bytes do not fit: {reserved} of {capacity} are reserved")
        self.nbytes, self.reserved, self.capacity = nbytes, reserved, capacity


class CachingAllocator:
    """Blocks handed out and taken back as `torch.cuda` does it, in bytes.

    `capacity` is what the device has for this allocator; None is endless. With `expandable_segments`, each pool is one
    range of addresses that grows by pages, as with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. The other
    settings are those of `profiler.predicting.trace.settings`.
    """

    def __init__(
        self,
        *,
        expandable_segments: bool = False,
        capacity: int | None = None,
        max_split_bytes: int | None = None,
        divisions: tuple[int, ...] = (),
    ) -> None:
        self._kind = ExpandablePool if expandable_segments else SegmentPool
        self._large_remainder = GRANULE if expandable_segments else LARGE_REMAINDER
        self._max_split = NO_LIMIT if max_split_bytes is None else max_split_bytes
        self._divisions = divisions
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # by stream: of small requests, and of large ones
        self._capacity = capacity
        self._allocated = self._reserved = 0
        self._peak_allocated = self._peak_reserved = 0

    def allocate(self, nbytes: int, stream: int = 0) -> Block:
        """A block of at least `nbytes`, which `free` takes back. Raises OutOfMemory where it does not fit."""
        assert nbytes > 0, "PyTorch asks its allocator for nothing where a tensor is empty"
        size = self._rounded(nbytes)
        small, large = self._pools.get(stream) or self._open(stream)
        pool = small if size <= SMALL_REQUEST else large
        block = pool.take(size) or self._grow(pool, size)
        self._allocated += block.size
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated
        return block

    def free(self, block: Block, stream: int = 0) -> None:
        """Take a block back, for the stream that had it. What it was part of stays reserved."""
        assert block.state == USED, "this block is free already"
        self._allocated -= block.size
        self._pools[stream][block.address >= LARGE_BASE].give(block)

    def release(self) -> None:
        """Return to the device every segment, or page, that is wholly free, as `torch.cuda.empty_cache` does."""
        self._reserved -= sum(pool.release() for pools in self._pools.values() for pool in pools)

    @property
    def allocated(self) -> int:
        """The bytes of the blocks that are handed out, as `torch.cuda.memory_allocated` counts them."""
        return self._allocated

    @property
    def reserved(self) -> int:
        """The bytes taken from the device, as `torch.cuda.memory_reserved` counts them."""
        return self._reserved

    @property
    def peak_allocated(self) -> int:
        """The most that was ever allocated."""
        return self._peak_allocated

    @property
    def peak_reserved(self) -> int:
        """The most that was ever reserved."""
        return self._peak_reserved

    def _rounded(self, nbytes: int) -> int:
        """The size of a request's block: a multiple of the granule, or of a division between two powers of two."""
        bits = nbytes.bit_length() - 1
        divisions = self._divisions[min(max(bits - 20, 0), NUM_INTERVALS - 1)] if self._divisions else 0
        if divisions > 1 and nbytes > GRANULE * divisions:
            return round_up(nbytes, 2**bits >> (divisions.bit_length() - 1))
        return round_up(nbytes, GRANULE)

    def _open(self, stream: int) -> tuple[Pool, Pool]:
        """Add the pools of a stream: blocks are not shared, since one stream would have to wait for the other."""
        remainder, limit = self._large_remainder, self._max_split
        small = self._kind(page=SMALL_PAGE, least_remainder=GRANULE, base=0)
        large = self._kind(page=LARGE_PAGE, least_remainder=remainder, base=LARGE_BASE, max_split=limit)
        return self._pools.setdefault(stream, (small, large))

    def _grow(self, pool: Pool, size: int) -> Block:
        if self._lacks(pool.growth(size)):
            self.release()
        growth = pool.growth(size)
        if self._capacity is not None and self._lacks(growth):
            raise OutOfMemory(size, reserved=self._reserved, capacity=self._capacity)
        pool.grow(size)
        self._reserved += growth
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        block = pool.take(size, has_grown=True)
        assert block is not None
        return block

    def _lacks(self, growth: int) -> bool:
        return self._capacity is not None and self._reserved + growth > self._capacity


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A second step as the allocator counts it. Bytes."""

    trace: Trace  # the bytes of every storage are those of its block; `unsplit` of them were not asked for
    reserved: dict[str, int]  # the largest in each phase


def replay(trace: Trace, settings: Settings = DEFAULT) -> Replayed:
    """The second step with the blocks that the allocator gives it, after the building of the model and a first step.

    The allocator is empty before the building. The first step has no gradients before it, and no optimizer state before
    its optimizer's phase; gradients that are accumulated over steps are allocated with that state. Storages are
    allocated in the order of their birth and freed after the operator with which they die. An operator's outputs are
    allocated before its hidden bytes, as in aten/src/ATen/native/cuda/Blas.cpp and cudnn/ConvShared.cpp.
    """
    blocks = _Blocks(
        CachingAllocator(
            expandable_segments=settings.expandable_segments,
            max_split_bytes=settings.max_split_bytes,
            divisions=settings.divisions,
        )
    )
    if trace.building:
        blocks.build(trace.building)
    blocks.run(trace, _first_step(trace, blocks.held))
    second = blocks.run(trace, _second_step(trace, blocks.held))
    return Replayed(
        trace=_with_blocks(trace, second),
        # without a capacity nothing is given back, so that the last value of a phase is its largest
        reserved={phase: second.reserved[last] for phase, _, last in trace.spans()},
    )


class _Step(msgspec.Struct):
    """What one replay gives: the sizes of blocks, and the reserved bytes."""

    sizes: dict[int, int]  # by the index of the allocation
    hidden: list[int]  # of what operators hide; by operator, 0 being before the step
    reserved: list[int]  # after each operator, 0 being before the step


class _Blocks:
    """The blocks of a trace's storages; `held` has those that are in use, by the index of the allocation."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.held: dict[int, Block] = {}
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

    def run(self, trace: Trace | Building, lives: Iterable[Life]) -> _Step:
        """Allocate and free as these lives say."""
        allocator, held = self._allocator, self.held
        step = _Step({index: block.size for index, block in held.items()}, [], [])
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


def _with_blocks(trace: Trace, step: _Step) -> Trace:
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


def _first_step(trace: Trace, held: dict[int, Block]) -> list[Life]:
    last = len(trace.operators)
    optimizer = min(last, next((before + 1 for phase, before in trace.marks if phase == "optimizer"), last))
    lives = []
    for index, allocation in enumerate(trace.allocations):
        is_later = not allocation.born and allocation.category in ("gradients", "optimizer")
        if index not in held:
            lives.append((index, optimizer if is_later else allocation.born, _died(allocation, last)))
    return lives


def _second_step(trace: Trace, held: dict[int, Block]) -> list[Life]:
    """Gradients from before the step that are not held were the first step's: this one begins by freeing them."""
    return [
        (index, allocation.born, _died(allocation, len(trace.operators)))
        for index, allocation in enumerate(trace.allocations)
        if index not in held and (allocation.born or allocation.category != "gradients")
    ]


def _died(allocation: Allocation, last: int) -> int:
    """The operator with which it is freed: beyond the last one for what is there before the step and after it."""
    return allocation.died if allocation.born or allocation.died < last else last + 1


def _by_operator(lives: Iterable[Life], last: int) -> tuple[list[list[int]], list[list[int]]]:
    """The indices of the allocations that begin with each operator, and of those that end with it."""
    born: list[list[int]] = [[] for _ in range(last + 2)]
    died: list[list[int]] = [[] for _ in range(last + 2)]
    for index, begin, end in lives:
        if begin <= end:  # otherwise it is gone before the operator runs
            born[begin].append(index)
            died[end].append(index)
    return born, died
