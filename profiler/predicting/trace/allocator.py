"""A simulation of PyTorch's caching allocator for CUDA, and its settings, without torch.

The rules are those of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from profiler.predicting.trace.memory_pools import (
    GRANULE,
    NO_LIMIT,
    USED,
    ExpandablePool,
    MemoryBlock,
    Pool,
    SegmentPool,
    round_up,
)

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
