"""Where a step runs, and how it is watched there: the doors that every device has. Knows nothing of cases.

`cpu` and `cuda` are a file each, whose `connect` returns a Device; `measure` picks by the first word of its name.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from profiler.core.record import Conditions

TABLE = {"cpu": "profiler.measuring.devices.cpu:connect", "cuda": "profiler.measuring.devices.cuda:connect"}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two marks: live at its start and end, and the largest number live in between."""

    start_bytes: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    live_bytes: tuple[int, ...] = ()  # after every event, where the device tells each


class Watch(Protocol):
    """Follows the memory while it is entered. Every `mark` ends a span and begins the next."""

    def __enter__(self) -> Watch: ...
    def __exit__(self, *error: object) -> None: ...
    def mark(self) -> None: ...
    def spans(self) -> list[Span]:
        """One span fewer than there were marks; read after leaving the context."""


class Stopwatch(Protocol):
    """Follows the time. Every `mark` ends a span and begins the next."""

    def mark(self) -> None: ...
    def seconds(self) -> list[float]:
        """One span fewer than there were marks; waits for the device."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a device is."""

    name: str
    total_bytes: int | None = None
    uuid: str | None = None
    driver: str | None = None


class Device(Protocol):
    """One device, by the name that torch has for it."""

    name: str
    tick_seconds: float  # the least that its stopwatch can tell apart
    is_asynchronous: bool  # whether it is at work while the host asks for more

    @property
    def is_hollow(self) -> bool:
        """Whether it has memory and does no arithmetic, so that only bytes mean something."""

    def watch(self, resting_bytes: int) -> Watch:
        """`resting_bytes` are live already; a device that knows better ignores them."""

    def stopwatch(self) -> Stopwatch: ...
    def synchronize(self) -> None: ...
    def release(self) -> None:
        """Give back all that the last pass has left, so that the next one starts as a fresh process would."""

    def facts(self) -> Facts: ...
    def free_bytes(self) -> int | None:
        """What nobody holds of the memory; None where there is no such number."""

    def held_bytes(self) -> int | None:
        """What this process's tensors hold of the memory; None where the allocator keeps no such number."""

    def conditions(self) -> Conditions: ...
    def untold(self) -> str | None:
        """Why `conditions` tells less than it could; None where it tells what there is."""
