"""What CUDA's memory takes in each phase, what held it at its peak, and what grows from step to step.

The allocator's counters are reset at each look without the script noticing. What held a peak, its own history says.

PyTorch's allocator keeps a history with Python stacks; it is read and cleared at each mark between two phases, so that
it never is longer than one. Where the script records one itself, holders are not looked at from then on.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch

history: Any = import_module("gcprof_history")  # beside this file

MOST_ENTRIES = 300_000  # of a phase, for each device; of a longer one the holders are not known
LOOK_AFTER = 20_000  # allocations within a phase, after which it is read so far
OWN = "not looked at: the script, or a library that it uses, records the allocator's history itself"
UNEQUAL = "not known where the allocator's history does not come to its peak to the byte"
RECOMPUTES = "torch/utils/checkpoint.py"
PLAIN = (torch.Tensor, torch.nn.Parameter)
PROCESS = ctypes.CDLL(None)  # with the libraries that are loaded for all
Known = dict[int, tuple[str, str]]  # by the address of a storage: its category, and its module
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
        self._replaced: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {}  # of torch._C: plain, ours
        self._is_ended = False
        self.on_reset: Callable[[int], None] = lambda device: None  # called before the script resets a device's peaks

    def stats(self, device: int) -> Stats:
        """Return the allocator's statistics of a device as they are."""
        read = NAMES[0][0]
        found: Stats = self._replaced.get(read, (getattr(torch._C, read),))[0](device)
        return found

    def begin(self) -> None:
        """Hide what is reset from now on."""
        self._is_ended = False
        for read, reset in NAMES:
            for name, function in ((read, self._reading), (reset, self._resetting)):
                if hasattr(torch._C, name) and name not in self._replaced:
                    plain = getattr(torch._C, name)
                    self._replaced[name] = plain, partial(function, plain)
                    setattr(torch._C, name, self._replaced[name][1])
        self.read()

    def read(self) -> dict[int, tuple[int, int, int]]:
        """Return of each device its peak since the last look, what is live, and the most that was reserved."""
        found = {}
        for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
            stats = self.stats(device)
            live, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            found[device] = live["peak"], live["current"], reserved["peak"]
            self.hidden[device] = _with_peaks(stats, self.hidden.get(device, {}))
            self._replaced[NAMES[0][1]][0](device)
        return found

    def end(self) -> None:
        """Give torch its own functions back, at once or when the script resets its peaks."""
        self._is_ended = True
        if all(_with_peaks(self.stats(device), hidden) == self.stats(device) for device, hidden in self.hidden.items()):
            self._put_back()

    def _put_back(self) -> None:
        self.hidden.clear()
        for name, (plain, ours) in self._replaced.items():
            if getattr(torch._C, name) is ours:  # not what somebody put over it
                setattr(torch._C, name, plain)
        self._replaced = {}

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


class _Workspace(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _OneDevice:
    """The blocks of one device, and the peak of the phase that is."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.space = history.Space()
        self.counted = 0, 0  # allocations and releases before the history that is read next
        self.begin()

    def begin(self) -> None:
        self.peak_bytes = -1  # nothing was read of this phase
        self.peak_line: str | None = None
        self.held: list[Any] = []  # blocks, at the peak
        self.lost = False  # a part of this phase's history


class Holders:
    """Reads the allocator's history for the watch, once it has begun."""

    def __init__(self) -> None:
        self.why: str | None = None  # nothing is looked at
        self.devices: dict[int, _OneDevice] = {}
        self.growth = history.Growth()
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id, in order
        self._most: dict[tuple[str, int], int] = {}  # of a phase and a step: the largest peak that was told
        self._is_ours = self._is_on = self._is_theirs = False

    def begin(self) -> None:
        """Record the history from when CUDA is used, and leave it to a script that records one."""
        interface: Any = torch._C
        for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
            if hasattr(interface, name):
                setattr(interface, name, partial(self._hand_over, getattr(interface, name)))
        if hasattr(interface, "_cuda_isHistoryEnabled"):
            enabled = interface._cuda_isHistoryEnabled
            interface._cuda_isHistoryEnabled = lambda: self._is_theirs and enabled()
        torch.cuda._lazy_call(self._begin)

    def _hand_over(self, record: Callable[..., Any], *words: Any, **keywords: Any) -> Any:
        if not self._is_ours and not self._is_theirs:
            self._is_theirs, self.why = True, OWN
            if self._is_on:
                self._is_on = False
                self._record(None)
        return record(*words, **keywords)

    # ---- what the watch tells

    def knows(self, owner: Any) -> None:
        """Know a module or an optimizer, whose tensors are named."""
        self._owners.setdefault(id(owner), owner)

    def called(self, phase: str, line: str, *arguments: Any) -> None:
        """Note the inputs of a model that is called now, and read the history so far if it is long."""
        if not self._is_on:
            return
        for tensor in _tensors(arguments):
            live = self.devices.setdefault(tensor.device.index, _OneDevice()).live
            for block in filter(None, map(live.get, _addresses(tensor))):
                if block.category is None and block.phase not in ("forward", "backward"):
                    block.category = "inputs"
        if any(_counted(device)[0] - one.counted[0] > LOOK_AFTER for device, one in self.devices.items()):
            self.read(phase, line)

    def ended(self, phase: str, step: int, line: str, devices: Mapping[int, tuple[int, int, int]]) -> dict[str, Any]:
        """End a phase: return its line and holders at its peak, on the device with the largest, if that is new."""
        if not self._is_on:
            return {}
        device, (peak_bytes, *_) = max(devices.items(), key=lambda item: item[1])
        key = phase, min(step, 2)
        before = {number: self.devices.get(number, _OneDevice()).counted for number in devices}
        if peak_bytes <= self._most.get(key, -1) and before == {number: _counted(number) for number in devices}:
            return {}  # nothing is in the history: reading it for each of thousands of tensors saved takes minutes
        self.read(phase, line)
        one = self.devices.get(device)
        found: dict[str, Any] = {}
        if one and not one.lost and peak_bytes > self._most.get(key, -1):
            self._most[key] = peak_bytes
            found = {"peak_line": one.peak_line or line, "holders": history.holders(one.held)}
            if one.peak_bytes != peak_bytes:
                found, self.why = {}, UNEQUAL
        for one in self.devices.values():
            one.begin()
        return found

    def reset(self, phase: str, line: str, device: int) -> None:
        """Forget the phase's peak so far, as the allocator's statistics do when the script resets them."""
        if self._is_on:
            self.read(phase, line)
            self.devices.setdefault(device, _OneDevice()).begin()

    def stepped(self, step: int) -> None:
        """Look for growth, right after a step of the main optimizer."""
        if self._is_on and step > 1:
            self.growth.step(block for one in self.devices.values() for block in one.live.values())

    def now(self, phase: str, line: str, device: int) -> list[dict[str, Any]]:
        """Return what is live on a device at this moment."""
        if not self._is_on:
            return []
        self.read(phase, line)
        one = self.devices.get(device)
        return history.holders(one.live.values()) if one else []

    # ---- the history

    def _begin(self) -> None:
        if self._is_theirs:
            return
        if torch.cuda.get_allocator_backend() != "native":
            self.why = "not looked at: another allocator than PyTorch's own keeps no history"
            return
        self._record(max_entries=MOST_ENTRIES)
        self._is_on = True

    def _record(self, enabled: Any = "all", **more: Any) -> None:
        before, self._is_ours = self._is_ours, True
        try:
            torch.cuda.memory._record_memory_history(
                enabled, context="alloc" if enabled else None, stacks="python", clear_history=True, **more
            )
        finally:
            self._is_ours = before

    def read(self, phase: str, line: str) -> None:
        """Read the history since it was cleared, and clear it; what goes wrong here never ends the script."""
        try:
            snapshot = torch._C._cuda_memorySnapshot(None)
            self._record(max_entries=MOST_ENTRIES)
            known = self._known()
            for device, entries in enumerate(snapshot["device_traces"]):
                if entries or device in self.devices:
                    one = self.devices.setdefault(device, _OneDevice())
                    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
                    one.space.settings = snapshot.get("allocator_settings", {})
                    self._read_one(one, entries, segments, known, phase, line)
                    one.counted = _counted(device)
        except Exception as error:  # noqa: BLE001  it is within the script
            self._is_on, self.why = False, f"not known: {type(error).__name__}: {error}"
            self._record(None)

    def _read_one(self, one: _OneDevice, entries: Any, segments: Any, known: Known, phase: str, line: str) -> None:
        if len(entries) >= MOST_ENTRIES:
            one.lost = True
            self.why = f"not known of phases with more than {MOST_ENTRIES} allocations"
        replayed = history.replay(one.live, one.space, entries, phase=phase)
        workspaces: dict[int, int] = {}  # bytes that cuBLAS was given, by address, as the hollow cuBLAS noted them
        if hasattr(PROCESS, "hollow_workspaces"):
            num = ctypes.c_int()
            PROCESS.hollow_workspaces.restype = ctypes.POINTER(_Workspace)
            given = PROCESS.hollow_workspaces(ctypes.byref(num))
            workspaces = {given[at].address: given[at].nbytes for at in range(num.value)}
        one.live = history.of_segments(segments, replayed.live, phase)
        one.space = history.Space(segments)
        for block in one.live.values():
            _describe(block, line, workspaces)
            if block.address in known:
                block.category, block.module = known[block.address]
            elif block.category is None and block.phase == "forward":
                block.category = "activations"
        if replayed.peak_bytes > one.peak_bytes:
            for block in replayed.held:
                _describe(block, line, workspaces)
                if block.category is None and one.live.get(block.address) is not block and block.phase == phase:
                    block.category = history.TEMPORARIES
            one.peak_bytes, one.held = replayed.peak_bytes, replayed.held
            one.peak_line = replayed.peak.line if replayed.peak else None

    # ---- what is known of storages

    def _known(self) -> Known:
        """Return the storages of parameters, gradients, buffers and optimizer state."""
        known: Known = {}
        owners = [*self._owners.values()]
        roots = [owner for owner in owners if isinstance(owner, torch.nn.Module)]
        optimizers = [owner for owner in owners if not isinstance(owner, torch.nn.Module)]
        named = [(parameter, name.rpartition(".")[0]) for root in roots for name, parameter in root.named_parameters()]
        names = {id(parameter): module for parameter, module in named}
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        others = [(one, "") for group in groups for one in group["params"] if id(one) not in names]
        for parameter, module in (*named, *others):
            _keep(known, [parameter], "parameters", module)
            if parameter.is_leaf and parameter.grad is not None:
                _keep(known, [parameter.grad], "gradients", module)
        for name, buffer in (pair for root in roots for pair in root.named_buffers()):
            _keep(known, [buffer], "buffers", name.rpartition(".")[0])
        for parameter, state in (pair for optimizer in optimizers for pair in optimizer.state.items()):
            _keep(known, _tensors([state]), "optimizer state", names.get(id(parameter), ""))
        return known


def _counted(device: int) -> tuple[int, int]:
    """Return how many allocations and releases there were on a device."""
    stats = counters.stats(device)["allocation"]["all"]
    return stats["allocated"], stats["freed"]


def _describe(block: Any, line: str, workspaces: dict[int, int]) -> None:
    """Note the line of a block, and what its stack says of it, and forget that."""
    if block.line is None:
        block.line = history.line_of(block.frames) or line
        if workspaces.get(block.address) == block.requested:
            block.category = "workspace"
        elif block.phase == "backward" and any(frame["filename"].endswith(RECOMPUTES) for frame in block.frames):
            block.category = "recomputed activations"
        block.frames = ()


def _tensors(items: Any, depth: int = 4) -> Iterator[Any]:
    """Return the tensors on a GPU within tuples, lists, dictionaries and objects that are like these."""
    if isinstance(items, torch.Tensor):
        if items.is_cuda:
            yield items
    elif depth and isinstance(items, (tuple, list, Mapping)):
        for item in items.values() if isinstance(items, Mapping) else items:
            yield from _tensors(item, depth - 1)


def _keep(known: Known, tensors: Iterable[Any], category: str, module: str) -> None:
    for tensor in tensors:
        for address in _addresses(tensor):
            known.setdefault(address, (category, module))


def _addresses(tensor: Any) -> list[int]:
    """Return the address of a tensor's storage on a GPU; of a sharded one, that of the part that is here."""
    if type(tensor) in PLAIN and tensor.is_cuda and tensor.layout is torch.strided:
        address = tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
        return [address] if address > 0 else []
    with suppress(Exception):  # a tensor without a storage
        local = getattr(tensor, "_local_tensor", tensor)
        if local.is_cuda and (address := local.untyped_storage().data_ptr()):
            return [address]
    return []


def call_of(frame: Any) -> dict[str, Any]:
    """Return the keywords of the call of a module whose hook runs in this frame."""
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return dict(frame.f_locals.get("kwargs") or {}) if frame is not None else {}
