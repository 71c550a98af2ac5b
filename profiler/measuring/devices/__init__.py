"""The interface of a device, the CPU, the environment that a record stores, and a test of a device's arithmetic.

The CPU's bytes are exact, from the allocator's own events, never RSS.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.record import Conditions, Environment

TABLE = {
    "cpu": "profiler.measuring.devices:connect",
    "cuda": "profiler.measuring.devices.cuda:connect",
    "rehearse": "profiler.measuring.devices.cuda:connect",
}
MATRIX_SIZE = 16  # of the test matrices; all numbers are whole and below 2**10, so exact in every type


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two marks: live at its start and end, and the largest number live in between."""

    start_bytes: int
    peak_bytes: int
    end_bytes: int
    freed_bytes: int = 0  # live at the start and gone by the end, if that was asked for
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    live_bytes: tuple[int, ...] = ()  # after every event, if the device reports each


class Watch:
    """A context manager that follows the memory. Every `mark` ends a span and begins the next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def mark(self, *, follow: bool = False) -> None:
        """With `follow`, the span that begins also reports what it frees."""

    def spans(self) -> list[Span]:
        """Return the spans between the marks; call it after leaving the context."""
        raise NotImplementedError


class Stopwatch:
    """Measures wall time, as a CPU step is synchronous. Every `mark` ends a span and begins the next."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds of the spans between the marks; waits for the device."""
        return [later - earlier for earlier, later in pairwise(self._times)]


class Device:
    """One device; `name` is its name in a case. What a device does not tell is None."""

    name: str
    tick_seconds: float  # the resolution of its stopwatch
    is_asynchronous = False  # whether it works while the host goes on

    @property
    def is_hollow(self) -> bool:
        """Whether it has memory and does no arithmetic, so that only bytes mean something."""
        return False

    def watch(self, resting_bytes: int) -> Watch:
        """Return a Watch; `resting_bytes` are live already, unless the device counts them itself."""
        raise NotImplementedError

    def stopwatch(self) -> Stopwatch:
        return Stopwatch()

    def synchronize(self) -> None:
        """Wait for the device's work."""

    def release(self) -> None:
        """Free all that the last pass left, so that the next one starts as in a fresh process."""
        gc.collect()  # the last pass's model is part of reference cycles

    def keep_memory(self) -> None:
        """Keep freed memory in this process, so that a step's time does not depend on the steps before it."""

    def facts(self) -> Environment:
        """Return what the device is, and the versions of this process."""
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        """Return the free bytes of the device."""
        return None

    def held_bytes(self) -> int | None:
        """Return the bytes held by this process's tensors, if the allocator counts them."""
        return None

    def conditions(self) -> Conditions:
        """Return the state of the device now."""
        raise NotImplementedError

    def untold(self) -> str | None:
        """Return why `conditions` is incomplete; None if it is complete."""
        return None


def versions(**device: Any) -> Environment:
    """Return an environment with the versions of this process, and with what is known of a device."""
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        **device,
    )


def environment(device: Device) -> Environment:
    """Return the versions and the device, as this process sees them."""
    return msgspec.structs.replace(
        device.facts(),
        cuda=torch.version.cuda,
        num_threads=torch.get_num_threads(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def open_device(name: str) -> Device:
    """Open the device of that name: `cpu`, `cuda:0`."""
    connect, _ = catalogue.load(Choice(name.partition(":")[0]), TABLE)
    device: Device = connect(name)
    return device


def of_rank(case: Case, rank: int) -> Case:
    """Return the case on the rank's own device: ranks take consecutive devices, starting with the case's."""
    kind, _, first = case.device.partition(":")
    is_next = rank > 0 and kind == "cuda"  # a GPU that is named by its kind has no further ranks
    return msgspec.structs.replace(case, device=f"{kind}:{int(first or 0) + rank}") if is_next else case


def wrong_arithmetic(device: str) -> str | None:
    """Return what the device computes wrongly, in a sentence; None where every number is right."""
    places = range(MATRIX_SIZE)
    left = [[(3 * row + column) % 5 - 2 for column in places] for row in places]
    right = [[(row + 2 * column) % 7 - 3 for column in places] for row in places]
    product = [
        sum(a * b for a, b in zip(row, column, strict=True)) for row in left for column in zip(*right, strict=True)
    ]
    gradient = [sum(row) for _ in left for row in right]  # of the product's sum with respect to the left matrix

    weights = torch.tensor(left, dtype=torch.float32, device=device, requires_grad=True)  # (row, inner)
    computed = weights @ torch.tensor(right, dtype=torch.float32, device=device)  # (row, column)
    computed.sum().backward()
    assert weights.grad is not None, "it is a leaf that needs one"
    numbers = [*computed.flatten().tolist(), *weights.grad.flatten().tolist()]
    num_right = sum(number == expected for number, expected in zip(numbers, [*product, *gradient], strict=True))
    if num_right == len(numbers):
        return None
    text = f"{num_right} of {len(numbers)} numbers of a small product and its gradient are right"
    return f"it computes nothing, or nothing right: {text}; its times and gradients mean nothing"


MARK = "gcprof: mark"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)
BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # guests are counted under user


def connect(device: str) -> Cpu:
    """Return the CPU of this machine."""
    return Cpu(device)


class CpuWatch(Watch):
    """Sums the events that torch's CPU allocator reports to the profiler.

    The allocator knows the size of what it frees only where it was allocated under the profiler too, so enter the
    watch before the step that creates gradients and optimizer state. Source: c10/core/CPUAllocator.cpp.
    """

    def __init__(self, resting_bytes: int) -> None:
        self._resting = resting_bytes
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Self:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(None, None, None)

    def mark(self, *, follow: bool = False) -> None:
        with record_function(MARK):
            pass

    def spans(self) -> list[Span]:
        profiler: Any = self._profile.profiler  # its events are not typed
        events = list(profiler.kineto_results.experimental_event_tree())
        found: list[tuple[int, tuple[int, int] | None]] = []  # by time: address and bytes, or None for a mark
        while events:
            event = events.pop()
            events += event.children
            if event.name == MARK:
                found.append((event.start_time_ns, None))
            elif event.name == "[memory]":
                found.append((event.start_time_ns, (event.extra_fields.ptr, event.extra_fields.alloc_size)))
        return sum_events([block for _, block in sorted(found, key=lambda item: item[0])], self._resting)


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


class Cpu(Device):
    """The CPU."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tick_seconds = time.get_clock_info("perf_counter").resolution
        self._opened = time.monotonic(), _others_seconds()

    def watch(self, resting_bytes: int) -> CpuWatch:
        return CpuWatch(resting_bytes)

    def keep_memory(self) -> None:
        """Make glibc keep freed memory in this process from now on, as CUDA's caching allocator does.

        Otherwise glibc returns memory to the system or not, depending on what the process freed before: a step then
        reuses pages or has the system map new ones, which made it up to a sixth faster or slower.
        """
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        if library is not None and hasattr(library, "mallopt"):  # of other C libraries only glibc has it
            library.mallopt(M_TRIM_THRESHOLD, -1)
            library.mallopt(M_MMAP_MAX, 0)

    def facts(self) -> Environment:
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else platform.processor() or platform.machine()
        return versions(device_name=name, device_bytes=psutil.virtual_memory().total)

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
