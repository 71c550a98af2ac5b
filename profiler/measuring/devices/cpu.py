"""The CPU: exact bytes from the allocator's own events, never RSS."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from torch.profiler import ProfilerActivity, profile, record_function

from profiler.core.record import Conditions
from profiler.measuring.devices import Device, Facts, Span

MARK = "gcprof: mark"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)
BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # guests are counted under user


def connect(device: str) -> Cpu:
    """Return the CPU of this machine."""
    return Cpu(device)


class CpuWatch:
    """Sums the events that torch's CPU allocator reports to the profiler.

    The allocator knows the size of what it frees only where it was allocated under the profiler too, so enter the
    watch before the step that creates gradients and optimizer state. Source: c10/core/CPUAllocator.cpp.
    """

    def __init__(self, resting_bytes: int) -> None:
        self._resting = resting_bytes
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> CpuWatch:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(None, None, None)

    def mark(self, *, follow: bool = False) -> None:
        with record_function(MARK):
            pass

    def spans(self) -> list[Span]:
        profiler: Any = self._profile.profiler  # its events are not typed
        return sum_events(_blocks(profiler.kineto_results.experimental_event_tree()), self._resting)


def sum_events(events: list[tuple[int, int] | None], resting_bytes: int) -> list[Span]:
    """Return the spans between marks; events in time order are pairs of address and bytes, or None for a mark.

    Bytes are negative where they are released. `freed_bytes` counts blocks that were live when the span began, but not
    those from before the first event.
    """
    spans: list[Span] = []
    older: set[int] = set()  # addresses of blocks that have been live since before the last mark
    newer: set[int] = set()
    held: list[int] = []  # since the last mark
    live, start, freed = resting_bytes, None, 0
    for event in events:
        if event is None:
            if start is not None:
                peak = max([start, *held])
                spans.append(
                    Span(start_bytes=start, peak_bytes=peak, end_bytes=live, freed_bytes=freed, live_bytes=tuple(held))
                )
            older |= newer
            newer, held, start, freed = set(), [], live, 0
            continue
        address, nbytes = event
        live += nbytes
        held.append(live)
        if nbytes >= 0:
            newer.add(address)
        elif address in older:
            older.remove(address)
            freed -= nbytes
        else:
            newer.discard(address)
    return spans


def _blocks(tree: list[Any]) -> list[tuple[int, int] | None]:
    """Return address and bytes of every allocator event, and None for every mark, in order of time."""
    found: list[tuple[int, tuple[int, int] | None]] = []
    events = list(tree)
    while events:
        event = events.pop()
        events += event.children
        if event.name == MARK:
            found.append((event.start_time_ns, None))
        elif event.name == "[memory]":
            found.append((event.start_time_ns, (event.extra_fields.ptr, event.extra_fields.alloc_size)))
    return [block for _, block in sorted(found, key=lambda item: item[0])]


class CpuStopwatch:
    """Wall time: a CPU step is synchronous."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self._times, self._times[1:], strict=False)]


class Cpu(Device):
    """The CPU."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tick_seconds = time.get_clock_info("perf_counter").resolution
        self._opened = time.monotonic(), _others_seconds()

    def watch(self, resting_bytes: int) -> CpuWatch:
        return CpuWatch(resting_bytes)

    def stopwatch(self) -> CpuStopwatch:
        return CpuStopwatch()

    def keep_memory(self) -> None:
        """Make glibc keep freed memory in this process from now on, as CUDA's caching allocator does.

        Otherwise glibc returns memory to the system or not, depending on what the process freed before: a step then
        reuses pages or has the system map new ones, which made it up to a sixth faster or slower.
        """
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        if library is not None and hasattr(library, "mallopt"):  # of other C libraries only glibc has it
            library.mallopt(M_TRIM_THRESHOLD, -1)
            library.mallopt(M_MMAP_MAX, 0)

    def facts(self) -> Facts:
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else platform.processor() or platform.machine()
        return Facts(name=name, total_bytes=psutil.virtual_memory().total)

    def conditions(self) -> Conditions:
        at, others = self._opened
        return Conditions(
            at_seconds=time.monotonic() - at,
            others_seconds=max(0.0, _others_seconds() - others),  # the system counts in hundredths of a second
            num_cores=psutil.cpu_count(),
        )


def available_bytes() -> int:
    """Return the bytes that the host can still provide without swapping."""
    return int(psutil.virtual_memory().available)


def _others_seconds() -> float:
    """Return the seconds that all cores together were busy with other work, stolen time included."""
    spent = psutil.cpu_times()
    busy = sum(getattr(spent, name, 0.0) for name in BUSY)
    return float(busy) - time.process_time()
