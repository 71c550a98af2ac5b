"""The free parts of the segments of CUDA's caching allocator, changed along with the history that it keeps.

The history is that of the entries and segments of `torch.cuda.memory._snapshot()`. An entry tells what was asked for;
what a block took of its segment, as `memory_allocated` counts it, follows from the parts of the segment that were free
then. The standard library alone: a file of `profiler/scripts/inject` loads this one where gcprof may not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

GRANULE = 512  # bytes: the allocator rounds every request up to this
SMALL = 2**20  # bytes: up to here blocks are cut from the small pool; and what is left of a large one stays with it


class Space:
    """The free parts of segments, by address; `settings` are the allocator's, as a snapshot has them."""

    def __init__(self, segments: Iterable[Mapping[str, Any]] = (), settings: Mapping[str, Any] = {}) -> None:
        self.settings = settings
        self.begins: set[int] = set()  # of segments: parts do not grow together over them
        self.free: dict[int, int] = {}  # bytes
        self.ends: dict[int, int] = {}  # of free parts: their begin
        self.taken: dict[int, int] = {}  # bytes
        for segment in segments:
            if segment.get("is_expandable"):
                continue  # these are always cut to the request
            self.begins.add(segment["address"])
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    self._put(block["address"], block["size"])
                else:
                    self.taken[block["address"]] = block["size"]

    def follow(self, entry: Mapping[str, Any]) -> int:
        """Change as an entry of the history says; return the bytes that an allocation got, 0 for any other."""
        action, address = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            return self._take(address, entry["size"])
        if action == "free_completed":
            self._give(address)
        elif action == "segment_alloc":
            self.begins.add(address)
            self._put(address, entry["size"])
        elif action == "segment_free":
            self.begins.discard(address)
            if address in self.free:
                del self.ends[address + self.free.pop(address)]
        return 0

    def _take(self, address: int, requested: int) -> int:
        """Return the bytes that a request gets at this address. Source: `should_split` in CUDACachingAllocator.cpp."""
        size = self._rounded(requested)
        if address not in self.free:
            return size
        whole = self.free.pop(address)
        del self.ends[address + whole]
        left, most = whole - size, self.settings.get("max_split_size", -1)  # -1: none
        if left >= GRANULE if size <= SMALL else left > SMALL and (size < most or most < 0):
            self._put(address + size, left)
        else:
            size = whole
        self.taken[address] = size
        return size

    def _rounded(self, requested: int) -> int:
        """Return the bytes that are looked for. Source: `round_size` in CUDACachingAllocator.cpp."""
        power = max(1, requested).bit_length() - 1
        place = 1 << min(max(0, power - 20), 15)  # MiB: settings are for powers of two
        divisions = self.settings.get("roundup_power2_divisions", {}).get(str(place), 0)
        step = (1 << power) // divisions if divisions > 1 and requested > GRANULE * divisions else GRANULE
        return max(1, -(-requested // step)) * step

    def _give(self, address: int) -> None:
        """Make what was taken at this address free again."""
        size = self.taken.pop(address, 0)
        if not size:
            return
        after = address + size
        if after in self.free and after not in self.begins:
            size += self.free.pop(after)
            del self.ends[address + size]
        if address in self.ends and address not in self.begins:
            address = self.ends.pop(address)
            size += self.free.pop(address)
        self._put(address, size)

    def _put(self, address: int, size: int) -> None:
        self.free[address] = size
        self.ends[address + size] = address
