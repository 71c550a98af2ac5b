"""What a CUDA allocator did, as it was recorded, beside what the simulation makes of it.

A history is a JSON list of {"action", "addr", "size"}: the entries of one device in the `device_traces` of
`torch.cuda.memory._snapshot()`, in order and with whatever other keys, from before the first allocation on. Bytes;
`size` is what was asked for, before it is rounded up. These actions count:

- `alloc`; `free_completed`, or `free` for short
- `segment_alloc`, or `segment_map` where segments are expandable

The simulated device is endless: a history in which it got memory back (`segment_free`, `segment_unmap`) is refused.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from pathlib import Path

import msgspec

from profiler.core.allocator_history import GRANULE
from profiler.predicting.trace.allocator import (
    LARGE_REMAINDER,
    SMALL_REQUEST,
    CachingAllocator,
    MemoryBlock,
    Settings,
    round_up,
)

FREED = ("free", "free_completed")
MAPPED, UNMAPPED = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


class Event(msgspec.Struct, frozen=True):
    """One entry of a history."""

    action: str
    address: int = msgspec.field(default=0, name="addr")  # not told of some actions that do not count here
    size: int = 0


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes after an allocation or a release."""

    allocated: int
    reserved: int
    recorded_allocated: int
    recorded_reserved: int


def read(path: Path) -> tuple[Event, ...]:
    """A history from its file."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[Event, ...])


def replay(events: Sequence[Event]) -> tuple[Instant, ...]:
    """Simulate what was recorded; one instant for each allocation and each release.

    Segments are expandable where the history says so.
    """
    assert not any(event.action in UNMAPPED for event in events), "the simulation gives nothing back to the device"
    expandable = any(event.action == "segment_map" for event in events)
    simulated = CachingAllocator(Settings(expandable_segments=expandable))
    recorded = _Recorded(expandable_segments=expandable)
    blocks: dict[int, MemoryBlock] = {}
    instants = []
    for event in events:
        recorded.follow(event)
        if event.action == "alloc":
            blocks[event.address] = simulated.allocate(event.size)
        elif event.action in FREED:
            simulated.free(blocks.pop(event.address))
        if event.action == "alloc" or event.action in FREED:
            instants.append(
                Instant(
                    allocated=sum(block.size for block in blocks.values()),
                    reserved=simulated.reserved,
                    recorded_allocated=recorded.allocated,
                    recorded_reserved=recorded.reserved,
                )
            )
    return tuple(instants)


class _Recorded:
    """The bytes that the recorded addresses tell of: a block reaches to the next one where the rest was not cut off."""

    def __init__(self, *, expandable_segments: bool) -> None:
        self.allocated = self.reserved = 0
        self._is_always_cut = expandable_segments
        self._blocks: dict[int, int] = {}  # address: bytes
        self._bounds: list[int] = []  # where blocks begin and segments end, sorted

    def follow(self, event: Event) -> None:
        if event.action in MAPPED:
            self.reserved += event.size
        elif event.action == "alloc":
            self._blocks[event.address] = self._block(event)
            self.allocated += self._blocks[event.address]
        elif event.action in FREED:
            self.allocated -= self._blocks.pop(event.address)
        self._bound(event)

    def _bound(self, event: Event) -> None:
        if event.action == "segment_alloc":
            insort(self._bounds, event.address + event.size)
        elif event.action == "alloc":
            insort(self._bounds, event.address)
        elif event.action in FREED:
            self._bounds.remove(event.address)

    def _block(self, event: Event) -> int:
        size = round_up(event.size, GRANULE)
        if self._is_always_cut or size <= SMALL_REQUEST:
            return size
        room = self._bounds[bisect_right(self._bounds, event.address)] - event.address
        return size if room - size >= LARGE_REMAINDER else room
