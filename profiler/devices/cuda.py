"""A CUDA device: bytes by the caching allocator's statistics, time by its events. Knows nothing of models."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from profiler.devices import Conditions, Facts, Span, nvml


def connect(device: str) -> Cuda:
    """One CUDA device, `cuda:0` and so on."""
    return Cuda(device)


class CudaWatch:
    """Reads and resets `torch.cuda.max_memory_allocated` and `max_memory_reserved` at every mark.

    The allocator counts on the host, when a tensor is asked for, so that no synchronising is needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[Span] = []
        self._start: int | None = None

    def __enter__(self) -> CudaWatch:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def mark(self) -> None:
        live = torch.cuda.memory_allocated(self._device)
        if self._start is not None:
            free, total = torch.cuda.mem_get_info(self._device)
            self._spans.append(
                Span(
                    start_bytes=self._start,
                    peak_bytes=torch.cuda.max_memory_allocated(self._device),
                    end_bytes=live,
                    reserved_bytes=torch.cuda.max_memory_reserved(self._device),
                    device_bytes=total - free,  # sampled here, where the other two are exact
                )
            )
        torch.cuda.reset_peak_memory_stats(self._device)
        self._start = live

    def spans(self) -> list[Span]:
        return self._spans


class CudaStopwatch:
    """Events on the current stream: the device's own clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def seconds(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        pairs = zip(self._events, self._events[1:], strict=False)
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairs]


class Cuda:
    """One CUDA device, `cuda:0` and so on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._device = torch.device(name)
        torch.cuda.set_device(self._device)
        self._opened = time.monotonic()
        self._board: nvml.Board | None = None
        self._is_looked_up = False

    def watch(self, resting_bytes: int) -> CudaWatch:
        return CudaWatch(self._device)

    def stopwatch(self) -> CudaStopwatch:
        return CudaStopwatch(self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def release(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def facts(self) -> Facts:
        properties = torch.cuda.get_device_properties(self._device)
        return Facts(
            name=properties.name,
            total_bytes=properties.total_memory,
            uuid=str(getattr(properties, "uuid", "")) or None,
            driver=_driver(),
        )

    def conditions(self) -> Conditions:
        if not self._is_looked_up:
            uuid = self.facts().uuid
            self._board, self._is_looked_up = nvml.find(uuid) if uuid else None, True
        at = time.monotonic() - self._opened
        return self._board.conditions(at) if self._board else Conditions(at_seconds=at)


def _driver() -> str | None:
    """The driver's version, where the system tells it."""
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return None
    words = version.read_text(encoding="utf-8").split()
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)
