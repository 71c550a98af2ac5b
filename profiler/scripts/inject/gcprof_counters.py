"""CUDA's memory counters, reset at each look without the script noticing: torch and the standard library alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Stats = dict[str, Any]
NAMES = (  # of torch._C: what reads the counters of a device, and what resets their peaks
    ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
    ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
)


class Counters:
    """What each CUDA device took since the last look; the script reads its peaks as if nobody had reset them.

    After `end` the script's reading goes through this object for as long as its peaks would otherwise be too small,
    which is until it resets them itself.
    """

    def __init__(self) -> None:
        self.hidden: dict[int, Stats] = {}  # by device: the statistics with the largest peaks until the last look
        self._plain: dict[str, Callable[[int], Any]] = {}  # functions of torch._C that were replaced
        self._ours: dict[str, Callable[[int], Any]] = {}
        self._is_ended = False
        self.on_reset: Callable[[int], None] = lambda device: None  # called before the script resets a device's peaks

    def stats(self, device: int) -> Stats:
        """Return the allocator's statistics of a device as they are."""
        read = NAMES[0][0]
        found: Stats = self._plain.get(read, getattr(torch._C, read))(device)
        return found

    def begin(self) -> None:
        """Hide what is reset from now on."""
        self._is_ended = False
        for read, reset in NAMES:
            if hasattr(torch._C, read) and read not in self._plain:
                self._replace(read, self._reading)
                self._replace(reset, self._resetting)
        self.read()

    def read(self) -> dict[int, tuple[int, int, int]]:
        """Return of each device its peak since the last look, what is live, and the most that was reserved."""
        found = {}
        for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
            stats = self._plain[NAMES[0][0]](device)
            live, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            found[device] = live["peak"], live["current"], reserved["peak"]
            self.hidden[device] = _with_peaks(stats, self.hidden.get(device, {}))
            self._plain[NAMES[0][1]](device)
        return found

    def end(self) -> None:
        """Give torch its own functions back, at once or when the script resets its peaks."""
        self._is_ended = True
        if not any(self._are_needed(device) for device in self.hidden):
            self._put_back()

    def _are_needed(self, device: int) -> bool:
        now = self._plain[NAMES[0][0]](device)
        return bool(_with_peaks(self._plain[NAMES[0][0]](device), self.hidden[device]) != now)

    def _replace(self, name: str, by: Callable[[Callable[[int], Any]], Callable[[int], Any]]) -> None:
        self._plain[name] = getattr(torch._C, name)
        self._ours[name] = by(self._plain[name])
        setattr(torch._C, name, self._ours[name])

    def _put_back(self) -> None:
        self.hidden.clear()
        for name, ours in self._ours.items():
            if getattr(torch._C, name) is ours:  # not what somebody put over it
                setattr(torch._C, name, self._plain[name])
        self._plain, self._ours = {}, {}

    def _reading(self, function: Callable[[int], Stats]) -> Callable[[int], Stats]:
        return lambda device: _with_peaks(function(device), self.hidden.get(device, {}))

    def _resetting(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def reset(device: int) -> None:
            self.on_reset(device)
            self.hidden.pop(device, None)
            function(device)
            if self._is_ended and not self.hidden:
                self._put_back()

        return reset


counters = Counters()  # of the process: a later watch goes on with what an earlier one hides


def _with_peaks(stats: Stats, other: Stats) -> Stats:
    """Return statistics of the allocator whose peaks are the larger ones of two."""
    for name, value in stats.items():
        if isinstance(value, dict):
            _with_peaks(value, other.get(name, {}))
        elif name == "peak":
            stats[name] = max(value, other.get(name, value))
    return stats
