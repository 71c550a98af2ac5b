"""Clock, temperature, power and processes of one NVIDIA board, where NVML answers. Knows nothing of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from profiler.core.record import Conditions

try:
    import pynvml
except ImportError:  # the extra `gpu` installs it
    pynvml = None

# nvmlClocksThrottleReason...; the other bits are settings, not problems. Source: nvml.h
HOLDS = {0x04: "the power limit", 0x08: "the hardware", 0x20: "heat", 0x40: "heat", 0x80: "the power supply"}


def find(uuid: str) -> Board | str:
    """Return the board with torch's UUID, or why there is none: NVML is missing or does not know it."""
    if pynvml is None:
        return "pynvml is not installed: pip install 'gcprof[gpu]'"
    try:
        pynvml.nvmlInit()
        return Board(pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"))
    except pynvml.NVMLError as error:
        return f"NVML: {error}"


def driver() -> str | None:
    """Return the driver's version; None without NVML."""
    if pynvml is None:
        return None
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


class Board:
    """One board; a number that it does not report is None."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def conditions(self, at_seconds: float) -> Conditions:
        """Read the board, in about a millisecond; this process must have used the device before."""
        reasons = self._reading(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        processes = self._reading(pynvml.nvmlDeviceGetComputeRunningProcesses)
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
            others_bytes=None if processes is None else _held_by_others(processes),
        )

    def _reading(self, query: Callable[..., Any], *which: int, unit: float | None = None) -> Any:
        try:
            answer = query(self._handle, *which)
        except pynvml.NVMLError:
            return None
        return answer if unit is None else answer * unit


def _held_by_others(processes: Sequence[Any]) -> int | None:
    """Return the bytes of other processes; None if the system hides them, or our process id is not listed."""
    others = [process for process in processes if process.pid != os.getpid()]
    held = [process.usedGpuMemory for process in others]
    is_listed = not processes or len(others) < len(processes)
    return int(sum(held)) if is_listed and None not in held else None
