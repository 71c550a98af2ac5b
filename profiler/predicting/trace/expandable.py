"""A pool of device memory with expandable segments: pages mapped into one address range. Knows nothing of requests.

The rules are those of c10/cuda/CUDACachingAllocator.cpp where `expandable_segments:True`. One difference: where a
request needs several holes and the device gives out in between, PyTorch keeps the first ones mapped; here nothing is.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from profiler.predicting.trace.segment_pool import FREE, NO_LIMIT, UNMAPPED, USED, Block, Pool, cut, round_up

ENDLESS = 2**48  # bytes: an address range that is never used up


class ExpandablePool(Pool):
    """Grows by mapping pages of one address range; returns every page of which all is free."""

    def __init__(self, *, page: int, least_remainder: int, base: int, max_split: int = NO_LIMIT) -> None:
        super().__init__(page=page, least_remainder=least_remainder, base=base, max_split=max_split)
        self._base = base
        self._unmapped = [Block(base, round_up(ENDLESS, page), UNMAPPED, None, None)]  # by address

    def growth(self, size: int) -> int:
        return sum(nbytes for _, nbytes in self._to_map(size))

    def grow(self, size: int) -> None:
        for hole, nbytes in self._to_map(size):
            self._unmapped.remove(hole)
            if nbytes < hole.size:
                self._leave(cut(hole, nbytes, UNMAPPED))
            self.give(hole)

    def release(self) -> int:
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

    def _to_map(self, size: int) -> list[tuple[Block, int]]:
        """The lowest unmapped blocks that make room for `size` with what is free about them, and the bytes to map."""
        for hole in self._unmapped:
            before = hole.before
            block: Block | None = before if before is not None and before.state == FREE else hole
            found, left = [], size
            while left > 0 and block is not None and block.state != USED:
                if block.state == UNMAPPED:
                    found.append((block, round_up(min(left, block.size), self._page)))
                left -= block.size
                block = block.after
            if left <= 0:
                return found
        raise AssertionError("an endless range is used up")

    def _unmap(self, block: Block, begin: int, end: int) -> None:
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

    def _leave(self, hole: Block) -> None:
        insort(self._unmapped, hole, key=attrgetter("address"))

    def _remove(self, block: Block) -> None:
        if block.state == UNMAPPED:
            self._unmapped.remove(block)
        else:
            super()._remove(block)
