"""Simulates PyTorch's CUDA caching allocator and its settings, without torch.

The rules and numbers are those of c10/cuda/CUDACachingAllocator.cpp, for a device with unlimited memory: segments are
never given back.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Mapping

import msgspec

from profiler.core.allocator_history import GRANULE

SMALL_REQUEST = 2**20  # bytes: the largest request that the small pool serves
SMALL_PAGE = 2 * 2**20  # bytes: a segment of the small pool
LARGE_PAGE = 20 * 2**20  # bytes: a segment that large requests below 10 MiB share
LARGE_REMAINDER = SMALL_REQUEST + GRANULE  # bytes: a large block is split only if at least this much is left over
LARGE_BASE = LARGE_PAGE * 2**24  # the large pool's first address, beyond all of the small pool's
MAY_SHARE = 10 * 2**20  # bytes: from here on a request gets a segment of its own
SEGMENT_GRANULE = 2 * 2**20  # bytes: such a segment's size is rounded up to a multiple of this
MAX_ROUNDING = 20 * 2**20  # bytes: a block too large to be split serves only requests smaller by less than this
NO_LIMIT = 2**62  # bytes
ADDRESS_BITS = 50  # more than CUDA's own addresses have
ENDLESS = 2**48  # bytes: an address range too large to be used up
USED, FREE, UNMAPPED = range(3)

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # PyTorch reads both
NUM_INTERVALS = 16  # size intervals: below 2 MiB, from each power of two to the next, from 32 GiB on


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that change which blocks the allocator returns; the defaults are PyTorch's."""

    expandable_segments: bool = False  # each pool is one address range that grows by pages
    max_split_bytes: int | None = None  # blocks of at least this size are not split; None: no limit
    divisions: tuple[int, ...] = ()  # by interval of sizes: rounding steps between two powers of two


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings in `VARIABLES`, read as in c10/core/AllocatorConfig.cpp.

    Settings that are ignored here do not change which blocks a step is given.
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
    """Return the number of rounding steps of each interval: `4` for all, or by size in MiB, `256:1,512:2,>:4`."""
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


def round_up(nbytes: int, to: int) -> int:
    """Return `nbytes`, rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


class CachingAllocator:
    """Allocates and frees blocks as `torch.cuda` does, in bytes."""

    def __init__(self, settings: Settings) -> None:
        self.reserved = 0  # bytes taken from the device, as `torch.cuda.memory_reserved` counts them
        self._settings = settings
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # by stream: of small requests, and of large ones

    def allocate(self, nbytes: int, stream: int = 0) -> MemoryBlock:
        """Return a block of at least `nbytes`, to be given to `free` later."""
        assert nbytes > 0, "PyTorch asks its allocator for nothing where a tensor is empty"
        size = self._rounded(nbytes)
        small, large = self._pools.get(stream) or self._open(stream)
        pool = small if size <= SMALL_REQUEST else large
        block = pool.take(size)
        if block is None:
            self.reserved += pool.grow(size)
            block = pool.take(size, has_grown=True)
            assert block is not None
        return block

    def free(self, block: MemoryBlock, stream: int = 0) -> None:
        """Free a block for the stream that allocated it. Its segment stays reserved."""
        assert block.state == USED, "this block is free already"
        self._pools[stream][block.address >= LARGE_BASE].give(block)

    def _rounded(self, nbytes: int) -> int:
        """Return the size of a request's block: a multiple of the granule, or of a step between two powers of two."""
        bits = nbytes.bit_length() - 1
        by_interval = self._settings.divisions
        divisions = by_interval[min(max(bits - 20, 0), NUM_INTERVALS - 1)] if by_interval else 0
        if divisions > 1 and nbytes > GRANULE * divisions:
            return round_up(nbytes, 2**bits >> (divisions.bit_length() - 1))
        return round_up(nbytes, GRANULE)

    def _open(self, stream: int) -> tuple[Pool, Pool]:
        """Add the pools of a stream. Streams do not share blocks: one would have to wait for the other."""
        kind, remainder = (ExpandablePool, GRANULE) if self._settings.expandable_segments else (Pool, LARGE_REMAINDER)
        limit = NO_LIMIT if self._settings.max_split_bytes is None else self._settings.max_split_bytes
        small = kind(page=SMALL_PAGE, least_remainder=GRANULE, base=0)
        large = kind(page=LARGE_PAGE, least_remainder=remainder, base=LARGE_BASE, max_split=limit)
        return self._pools.setdefault(stream, (small, large))


class MemoryBlock(msgspec.Struct, eq=False):
    """A range of addresses in bytes; `before` and `after` are its neighbors in the same segment."""

    address: int
    size: int
    state: int
    before: MemoryBlock | None
    after: MemoryBlock | None

    def cut(self, size: int, state: int) -> MemoryBlock:
        """Keep the first `size` bytes; return the rest as a new block after it."""
        rest = MemoryBlock(self.address + size, self.size - size, state, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.size, self.after = size, rest
        return rest


class Pool:
    """The free blocks of one stream, for small or for large requests. It grows by segments at separate addresses.

    Blocks are ordered by (size, address), packed into one number for speed. No two free blocks of a segment touch.
    """

    splits_always = False  # whether a block beyond the size limit for splits is split, too, once it is taken

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        self._page = page  # bytes requested from the device at once
        self._least_remainder = least_remainder
        self._max_split = max_split
        self._end = base  # of all segments: each new one is assumed to have higher addresses
        self._order: list[int] = []  # the keys of `_free`, sorted
        self._free: dict[int, MemoryBlock] = {}

    def take(self, size: int, *, has_grown: bool = False) -> MemoryBlock | None:
        """Take the smallest free block that holds `size`, the lowest address first, split if enough is left over.

        A block too large to be split is left for larger requests, unless the pool has just grown for this one. The end
        of an expandable range counts as large as it can become, so it is used last. None if no block fits.
        """
        place = bisect_left(self._order, size << ADDRESS_BITS)
        if place == len(self._order):
            return None
        block = self._free[self._order[place]]
        if block.after is not None and block.after.state == UNMAPPED:
            place = min(place + 1, len(self._order) - 1)
            block = self._free[self._order[place]]
        is_kept = block.size >= self._max_split and not has_grown
        if is_kept and (size < self._max_split or block.size >= size + MAX_ROUNDING):
            return None
        del self._free[self._order.pop(place)]
        block.state = USED
        if block.size - size >= self._least_remainder and (self.splits_always or size < self._max_split):
            self._insert(block.cut(size, FREE))
        return block

    def give(self, block: MemoryBlock) -> None:
        """Free a block and merge it with its free neighbors."""
        block.state = FREE
        before, after = block.before, block.after
        if before is not None and before.state == FREE:
            self._remove(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if before.before is not None:
                before.before.after = block
        if after is not None and after.state == FREE:
            self._remove(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._insert(block)

    def grow(self, size: int) -> int:
        """Reserve bytes of the device, so that `take` finds `size`; return how many."""
        nbytes = self._page if size < MAY_SHARE else round_up(size, SEGMENT_GRANULE)
        self._insert(MemoryBlock(self._end, nbytes, FREE, None, None))
        self._end += nbytes
        return nbytes

    def _insert(self, block: MemoryBlock) -> None:
        key = block.size << ADDRESS_BITS | block.address
        insort(self._order, key)
        self._free[key] = block

    def _remove(self, block: MemoryBlock) -> None:
        key = block.size << ADDRESS_BITS | block.address
        del self._order[bisect_left(self._order, key)]
        del self._free[key]


class ExpandablePool(Pool):
    """Grows by mapping pages of one address range, as with `expandable_segments:True`."""

    splits_always = True

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        super().__init__(page=page, least_remainder=least_remainder, base=base, max_split=max_split)
        self._unmapped = MemoryBlock(base, round_up(ENDLESS, page), UNMAPPED, None, None)  # the end of the range

    def grow(self, size: int) -> int:
        """Map pages after the last block, extending it if it is free; return their bytes."""
        grown = self._unmapped
        last = grown.before
        free = last.size if last is not None and last.state == FREE else 0
        nbytes = round_up(max(0, size - free), self._page)
        if nbytes:  # else the last block is large enough; `take` passed over it as too large to be split
            self._unmapped = grown.cut(nbytes, UNMAPPED)
            self.give(grown)
        return nbytes
