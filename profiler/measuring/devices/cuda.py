"""A CUDA device: bytes by the caching allocator's statistics, time by CUDA events, and what NVML tells of the board."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward

from profiler.core import gpu_specs
from profiler.core.errors import Unsupported
from profiler.core.record import Conditions, Environment
from profiler.core.trace_data import TAKEN_BACK, blocks_in_use
from profiler.measuring.devices import Device, Span, Stopwatch, Watch, versions

VERSION = Path("/proc/driver/nvidia/version")
try:
    import pynvml
except ImportError:  # the extra `gpu` installs it
    pynvml = None

# nvmlClocksThrottleReason...; the other bits are settings, not problems. Source: nvml.h
HOLDS = {0x04: "the power limit", 0x08: "the hardware", 0x20: "heat", 0x40: "heat", 0x80: "the power supply"}


def connect(device: str) -> Cuda:
    """Return `cuda:0` by its index, or the first visible device for `cuda:a100`; Unsupported if that is no A100."""
    cuda, asked = Cuda(device), gpu_specs.parse(device)
    if not asked.accepts(name := str(cuda.facts().device_name)):
        raise Unsupported(f"the GPU that was given for {asked.kind} is another one: {name}")
    return cuda


class CudaWatch(Watch):
    """Reads and resets `torch.cuda.max_memory_allocated` and `max_memory_reserved` at every mark, where PyTorch does.

    The allocator counts on the host, when a tensor is requested, so that no synchronization is needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[Span] = []
        self._start: int | None = None
        self._held: dict[int, int] | None = None  # by address, the blocks at the start of a span that is followed

    def mark(self, *, follow: bool = False) -> None:
        """End a span and begin the next: the allocator's peaks since the last mark are read and reset."""
        counts = torch._C._cuda_memoryStats(self._device.index)  # max_memory_allocated takes ten times as long
        live = counts["allocated_bytes"]["all"]["current"]
        if self._start is not None:
            free, total = torch.cuda.mem_get_info(self._device)
            self._spans.append(
                Span(
                    start_bytes=self._start,
                    peak_bytes=counts["allocated_bytes"]["all"]["peak"],
                    end_bytes=live,
                    freed_bytes=self._freed(),
                    reserved_bytes=counts["reserved_bytes"]["all"]["peak"],
                    device_bytes=total - free,  # sampled here; the two peaks above are exact
                )
            )
        torch.cuda.reset_peak_memory_stats(self._device)
        self._start = live
        if follow:
            segments = (one for one in torch.cuda.memory_snapshot() if one["device"] == self._device.index)
            self._held = {block.address: block.nbytes for block in blocks_in_use(segments)}
            torch.cuda.memory._record_memory_history(context=None, clear_history=True)

    def _freed(self) -> int:
        """Return the bytes of blocks that were live when the span began and were freed in it, by the allocator's trace.

        The allocator reuses addresses, so a block that is live at the same address at the end proves nothing.
        """
        if self._held is None:
            return 0
        events = torch.cuda.memory._snapshot()["device_traces"][self._device.index]
        torch.cuda.memory._record_memory_history(enabled=None)
        freed = {event["addr"] for event in events if event["action"] == TAKEN_BACK} & self._held.keys()
        nbytes = sum(self._held[address] for address in freed)
        self._held = None
        return nbytes

    def spans(self) -> list[Span]:
        return self._spans


class CudaStopwatch(Stopwatch):
    """Measures time by events on the current stream, which use the device's own clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """End a span and begin the next, in the order of the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def seconds(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(self._events)]


class Cuda(Device):
    """One CUDA device."""

    is_asynchronous = True
    tick_seconds = 5e-7  # the resolution of an event. Source: cudaEventElapsedTime

    def __init__(self, name: str) -> None:
        self.name = name
        self._device = torch.device(gpu_specs.parse(name).torch_device)
        torch.cuda.set_device(self._device)
        self._opened = time.monotonic()
        self._board: Board | str | None = None  # or why there is none; None before it is looked up

    @property
    def is_hollow(self) -> bool:
        return gpu_specs.is_hollow(torch.cuda.get_device_name(self._device))

    def watch(self, resting_bytes: int) -> CudaWatch:
        return CudaWatch(self._device)

    def stopwatch(self) -> CudaStopwatch:
        return CudaStopwatch(self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def release(self) -> None:
        """Free all that the last pass left; an empty backward makes autograd's thread of this device drop its graph.

        The thread reports a backward as done before it drops the last node, which under FSDP2 holds the sharded module,
        and may drop it only as the next one begins (torch/csrc/autograd/engine.cpp). The empty one allocates nothing,
        and torch.autograd.backward would import sympy to compare the shape of the gradient that it is given.
        """
        nothing = torch.zeros(0, device=self._device, requires_grad=True)
        root, gradient = nothing.view(-1), torch.empty_like(nothing)
        _engine_run_backward((root,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        del nothing, root, gradient
        super().release()
        torch.cuda.synchronize(self._device)
        torch._C._cuda_clearCublasWorkspaces()  # torch before 2.15 keeps them for each thread
        torch.cuda.empty_cache()

    def facts(self) -> Environment:
        properties = torch.cuda.get_device_properties(self._device)
        return versions(
            device_name=properties.name,
            device_bytes=properties.total_memory,
            device_uuid=str(getattr(properties, "uuid", "")) or None,
            driver=None if self.is_hollow else _driver(),
        )

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def conditions(self) -> Conditions:
        board = self._looked_up()
        at = time.monotonic() - self._opened
        return Conditions(at_seconds=at) if isinstance(board, str) else board.conditions(at)

    def untold(self) -> str | None:
        board = self._looked_up()
        return board if isinstance(board, str) else None

    def _looked_up(self) -> Board | str:
        if self._board is None:
            uuid = self.facts().device_uuid
            self._board = find_board(uuid) if uuid else "torch does not report the device's UUID"
        return self._board


def _driver() -> str | None:
    """Return the driver's version from /proc, else from NVML; None if neither has it."""
    words = VERSION.read_text(encoding="utf-8").split() if VERSION.exists() else []
    version = next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)
    if version or pynvml is None:
        return version
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def find_board(uuid: str) -> Board | str:
    """Return the board with torch's UUID, or why there is none: NVML is missing or does not know it."""
    if pynvml is None:
        return "pynvml is not installed: pip install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
        return Board(pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"))
    except pynvml.NVMLError as error:
        return f"NVML: {error}"


class Board:
    """One board; a number that it does not report is None."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def conditions(self, at_seconds: float) -> Conditions:
        """Read the board, in about a millisecond; this process must have used the device before."""
        reasons = self._reading(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        processes = self._reading(pynvml.nvmlDeviceGetComputeRunningProcesses)
        others = [one.usedGpuMemory for one in processes or () if one.pid != os.getpid()]  # None: the system hides it
        is_listed = not processes or len(others) < len(processes)  # else our own may be among them
        return Conditions(
            at_seconds=at_seconds,
            clock_hertz=self._reading(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM, unit=1e6),
            highest_clock_hertz=self._reading(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM, unit=1e6),
            celsius=self._reading(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU, unit=1.0),
            watts=self._reading(pynvml.nvmlDeviceGetPowerUsage, unit=1e-3),
            limit_watts=self._reading(pynvml.nvmlDeviceGetEnforcedPowerLimit, unit=1e-3),
            held_by=tuple(dict.fromkeys(name for bit, name in HOLDS.items() if reasons & bit)),
            # one of them is this process, whose id may differ in a container
            num_others=None if processes is None else max(0, len(processes) - 1),
            others_bytes=None if processes is None or not is_listed or None in others else int(sum(others)),
        )

    def _reading(self, query: Callable[..., Any], *which: int, unit: float | None = None) -> Any:
        try:
            answer = query(self._handle, *which)
        except pynvml.NVMLError:
            return None
        return answer if unit is None else answer * unit
