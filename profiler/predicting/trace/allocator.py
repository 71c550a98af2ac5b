"""A simulation of PyTorch's caching allocator for CUDA, and its settings, without torch.

The rules are those of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from operator import attrgetter

import msgspec

USED, FREE, UNMAPPED = range(3)

GRANULE = 512  # bytes: the CUDA caching allocator rounds every request up to this
MAY_SHARE = 10 * 2**20  # bytes: from here on a request gets a segment of its own
SEGMENT_GRANULE = 2 * 2**20  # bytes: what the size of such a segment is rounded up to
MAX_ROUNDING = 20 * 2**20  # bytes: a block that is not split is no more than this larger than its request
NO_LIMIT = 2**62  # bytes
ADDRESS_BITS = 50  # more than CUDA's own addresses have
ENDLESS = 2**48  # bytes: an address range that is never used up

SMALL_REQUEST = 2**20  # bytes: the largest request that the small pool serves
SMALL_PAGE = 2 * 2**20  # bytes: a segment of the small pool
LARGE_PAGE = 20 * 2**20  # bytes: a segment that large requests below 10 MiB share
LARGE_REMAINDER = SMALL_REQUEST + GRANULE  # bytes: what is left of a large block stays with it up to 1 MiB
LARGE_BASE = LARGE_PAGE * 2**24  # the first address of the large pool, beyond all of the small one's


VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # PyTorch reads both
NUM_INTERVALS = 16  # of sizes: below 2 MiB, from each power of two to the next, from 32 GiB on


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the blocks that the allocator gives; the defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None  # blocks of at least this are not split; None: every block may be
    divisions: tuple[int, ...] = ()  # by interval of sizes: into how many steps powers of two are divided to round up


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Returns the settings in `VARIABLES`, read as in c10/core/AllocatorConfig.cpp.

    Settings that are not here do not change which blocks a step is given.
    """
    words = ",".join(environment.get(name, "") for name in VARIABLES).replace(" ", "")
    expandable = re.search(r"expandable_segments:(true)", words, re.IGNORECASE)
    split = re.search(r"max_split_size_mb:(\d+)", words)
    divisions = re.search(r"roundup_power2_divisions:(?:\[([^\]]*)\]|(\d+))", words)
    return Settings(
        expandable_segments=bool(expandable),
        max_split_bytes=int(split[1]) * 2**20 if split else None,
        divisions=_divisions(*divisions.groups()) if divisions else (),
    )


def _divisions(by_size: str | None, everywhere: str | None) -> tuple[int, ...]:
    """The number of steps for each interval: from `4` for all, or from `256:1,512:2,>:4` by the size in MiB."""
    if everywhere is not None:
        return (int(everywhere),) * NUM_INTERVALS
    divisions = [0] * NUM_INTERVALS
    last = -1
    for word in (by_size or "").split(","):
        size, _, steps = word.partition(":")
        if size == ">":
            divisions[last + 1 :] = [int(steps)] * (NUM_INTERVALS - last - 1)
            continue
        index = min(int(size).bit_length() - 1, NUM_INTERVALS - 1)
        first = 0 if last < 0 else index
        divisions[first : index + 1] = [int(steps)] * (index + 1 - first)
        last = index
    return tuple(divisions)


class OutOfMemory(Exception):
    """A request that does not fit into the capacity, even after everything cached was returned."""

    def __init__(self, nbytes: int, *, reserved: int, capacity: int) -> None:
        super().__init__(f"{nbytes} bytes do not fit: {reserved} of {capacity} are reserved")
        self.nbytes, self.reserved, self.capacity = nbytes, reserved, capacity


class CachingAllocator:
    """Blocks handed out and taken back as `torch.cuda` does it, in bytes.

    `capacity` is what the device has for this allocator; None is endless. With `expandable_segments`, each pool is one
    range of addresses that grows by pages, as with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. The other
    settings are those of Settings.
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

    def allocate(self, nbytes: int, stream: int = 0) -> MemoryBlock:
        """A block of at least `nbytes`, which `free` takes back. Raises OutOfMemory where it does not fit."""
        assert nbytes > 0, "PyTorch asks its allocator for nothing where a tensor is empty"
        size = self._rounded(nbytes)
        small, large = self._pools.get(stream) or self._open(stream)
        pool = small if size <= SMALL_REQUEST else large
        block = pool.take(size) or self._grow(pool, size)
        self._allocated += block.size
        return block

    def free(self, block: MemoryBlock, stream: int = 0) -> None:
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

    def _grow(self, pool: Pool, size: int) -> MemoryBlock:
        if self._lacks(pool.growth(size)):
            self.release()
        growth = pool.growth(size)
        if self._capacity is not None and self._lacks(growth):
            raise OutOfMemory(size, reserved=self._reserved, capacity=self._capacity)
        pool.grow(size)
        self._reserved += growth
        block = pool.take(size, has_grown=True)
        assert block is not None
        return block

    def _lacks(self, growth: int) -> bool:
        return self._capacity is not None and self._reserved + growth > self._capacity


def round_up(nbytes: int, to: int) -> int:
    """Returns the next multiple of `to`."""
    return -(-nbytes // to) * to


class MemoryBlock:
    """A stretch of addresses in bytes; `before` and `after` are its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "size", "state")

    def __init__(
        self, address: int, size: int, state: int, before: MemoryBlock | None, after: MemoryBlock | None
    ) -> None:
        self.address = address
        self.size = size
        self.state = state
        self.before = before
        self.after = after


class Pool:
    """The free blocks by (size, address), which is one number here for speed. No two free ones of a segment touch."""

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        self._page = page  # bytes that are asked of the device at once
        self._least_remainder = least_remainder
        self._max_split = max_split
        self._order: list[int] = []  # the keys of `_free`, sorted
        self._free: dict[int, MemoryBlock] = {}

    def take(self, size: int, *, has_grown: bool = False) -> MemoryBlock | None:
        """The smallest free block that holds `size`, the lowest of equals, cut where enough is left over.

        One that is not to be split is left for larger requests, unless the pool has just grown for this one.
        """
        place = bisect_left(self._order, size << ADDRESS_BITS)
        if place == len(self._order):
            return None
        block = self._free[self._order[place]]
        if block.after is not None and block.after.state == UNMAPPED:
            place = self._preferred(place)
            block = self._free[self._order[place]]
        if block.size >= self._max_split and not has_grown and not self._is_for(size, block):
            return None
        del self._free[self._order.pop(place)]
        block.state = USED
        if block.size - size >= self._least_remainder and self._splits(size):
            self._insert(cut(block, size, FREE))
        return block

    def give(self, block: MemoryBlock) -> None:
        """Take a block back and join it with its free neighbours."""
        block.state = FREE
        self._join(block)
        self._insert(block)

    def _is_for(self, size: int, block: MemoryBlock) -> bool:
        """Whether a block that is too large to be split is given: only to such a request, and not much larger."""
        return size >= self._max_split and block.size < size + MAX_ROUNDING

    def _splits(self, size: int) -> bool:
        return size < self._max_split

    def growth(self, size: int) -> int:
        """The bytes that the device must give before `take` finds `size`."""
        raise NotImplementedError

    def grow(self, size: int) -> None:
        """Take these bytes from the device."""
        raise NotImplementedError

    def release(self) -> int:
        """Return to the device what is free, and say how many bytes that was."""
        raise NotImplementedError

    def _preferred(self, place: int) -> int:
        return place

    def _insert(self, block: MemoryBlock) -> None:
        key = block.size << ADDRESS_BITS | block.address
        insort(self._order, key)
        self._free[key] = block

    def _remove(self, block: MemoryBlock) -> None:
        key = block.size << ADDRESS_BITS | block.address
        del self._order[bisect_left(self._order, key)]
        del self._free[key]

    def _join(self, block: MemoryBlock) -> None:
        """Make one of a block and those neighbours that are in the same state."""
        before, after = block.before, block.after
        if before is not None and before.state == block.state:
            self._remove(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if before.before is not None:
                before.before.after = block
        if after is not None and after.state == block.state:
            self._remove(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block


class SegmentPool(Pool):
    """Grows by segments of their own addresses; returns a segment when all of it is free."""

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        super().__init__(page=page, least_remainder=least_remainder, base=base, max_split=max_split)
        self._next = base  # the device is taken to give ever higher addresses

    def growth(self, size: int) -> int:
        return self._page if size < MAY_SHARE else round_up(size, SEGMENT_GRANULE)

    def grow(self, size: int) -> None:
        segment = MemoryBlock(self._next, self.growth(size), FREE, None, None)
        self._next += segment.size
        self._insert(segment)

    def release(self) -> int:
        whole = [block for block in self._free.values() if block.before is None and block.after is None]
        for block in whole:
            self._remove(block)
        return sum(block.size for block in whole)


def cut(block: MemoryBlock, size: int, state: int) -> MemoryBlock:
    """Keep the first `size` bytes in the block; the rest is a new one after it."""
    rest = MemoryBlock(block.address + size, block.size - size, state, block, block.after)
    if block.after is not None:
        block.after.before = rest
    block.size, block.after = size, rest
    return rest


class ExpandablePool(Pool):
    """Grows by mapping pages of one address range; returns every page of which all is free.

    The rules are those where `expandable_segments:True`. One difference: where a request needs several holes and the
    device gives out in between, PyTorch keeps the first ones mapped; here nothing is.
    """

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        super().__init__(page=page, least_remainder=least_remainder, base=base, max_split=max_split)
        self._base = base
        self._unmapped = [MemoryBlock(base, round_up(ENDLESS, page), UNMAPPED, None, None)]  # by address

    def growth(self, size: int) -> int:
        return sum(nbytes for _, nbytes in self._to_map(size))

    def grow(self, size: int) -> None:
        for hole, nbytes in self._to_map(size):
            self._unmapped.remove(hole)
            if nbytes < hole.size:
                self._leave(cut(hole, nbytes, UNMAPPED))
            self.give(hole)

    def release(self) -> int:
        """Unmap the whole pages of free blocks; returns their bytes."""
        released = 0
        for block in list(self._free.values()):
            begin = round_up(block.address - self._base, self._page) + self._base
            end = block.address + block.size - (block.address + block.size - self._base) % self._page
            if begin < end:
                self._unmap(block, begin, end)
                released += end - begin
        return released

    def _splits(self, size: int) -> bool:
        return True

    def _preferred(self, place: int) -> int:
        """A block that can grow counts as large as it can become, so that the end of the range is used last."""
        while place + 1 < len(self._order) and self._room(place + 1) < self._room(place):
            place += 1
        return place

    def _room(self, place: int) -> int:
        block = self._free[self._order[place]]
        return block.size + (block.after.size if block.after is not None and block.after.state == UNMAPPED else 0)

    def _to_map(self, size: int) -> list[tuple[MemoryBlock, int]]:
        """The lowest unmapped blocks that make room for `size` with what is free about them, and the bytes to map."""
        for hole in self._unmapped:
            before = hole.before
            block: MemoryBlock | None = before if before is not None and before.state == FREE else hole
            holes, left = [], size
            while left > 0 and block is not None and block.state != USED:
                if block.state == UNMAPPED:
                    holes.append((block, round_up(min(left, block.size), self._page)))
                left -= block.size
                block = block.after
            if left <= 0:
                return holes
        raise AssertionError("an endless range is used up")

    def _unmap(self, block: MemoryBlock, begin: int, end: int) -> None:
        self._remove(block)
        if end < block.address + block.size:
            self._insert(cut(block, end - block.address, FREE))
        hole = block
        if block.address < begin:
            hole = cut(block, begin - block.address, UNMAPPED)
            self._insert(block)
        hole.state = UNMAPPED
        self._join(hole)
        self._leave(hole)

    def _leave(self, hole: MemoryBlock) -> None:
        insort(self._unmapped, hole, key=attrgetter("address"))

    def _remove(self, block: MemoryBlock) -> None:
        if block.state == UNMAPPED:
            self._unmapped.remove(block)
        else:
            super()._remove(block)
