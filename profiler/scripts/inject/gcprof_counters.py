"""CUDA's memory counters, reset at each look without the script noticing: torch and the standard library alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
        ours: tuple[Any, Any] = (self._reading, self._resetting)
        for names in NAMES:
            for name, function in zip(names, ours, strict=True):
                if hasattr(torch._C, name) and name not in self._plain:
                    self._plain[name] = getattr(torch._C, name)
                    self._ours[name] = partial(function, self._plain[name])
                    setattr(torch._C, name, self._ours[name])
        self.read()

    def read(self) -> dict[int, tuple[int, int, int]]:
        """Return of each device its peak since the last look, what is live, and the most that was reserved."""
        found = {}
        for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
            stats = self.stats(device)
            live, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            found[device] = live["peak"], live["current"], reserved["peak"]
            self.hidden[device] = _with_peaks(stats, self.hidden.get(device, {}))
            self._plain[NAMES[0][1]](device)
        return found

    def end(self) -> None:
        """Give torch its own functions back, at once or when the script resets its peaks."""
        self._is_ended = True
        if all(_with_peaks(self.stats(device), hidden) == self.stats(device) for device, hidden in self.hidden.items()):
            self._put_back()

    def _put_back(self) -> None:
        self.hidden.clear()
        for name, ours in self._ours.items():
            if getattr(torch._C, name) is ours:  # not what somebody put over it
                setattr(torch._C, name, self._plain[name])
        self._plain, self._ours = {}, {}

    def _reading(self, plain: Callable[[int], Stats], device: int) -> Stats:
        return _with_peaks(plain(device), self.hidden.get(device, {}))

    def _resetting(self, plain: Callable[[int], None], device: int) -> None:
        self.on_reset(device)
        self.hidden.pop(device, None)
        plain(device)
        if self._is_ended and not self.hidden:
            self._put_back()


counters = Counters()  # of the process: a later watch goes on with what an earlier one hides


def _with_peaks(stats: Stats, other: Stats) -> Stats:
    """Return statistics of the allocator whose peaks are the larger ones of two."""
    for name, value in stats.items():
        if isinstance(value, dict):
            _with_peaks(value, other.get(name, {}))
        elif name == "peak":
            stats[name] = max(value, other.get(name, value))
    return stats
