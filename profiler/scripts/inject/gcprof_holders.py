"""What CUDA's memory takes in each phase, what held it at its peak, and what grows from step to step.

The allocator's counters are reset at each look without the script noticing. What held a peak, its own history says.

PyTorch's allocator keeps a history with Python stacks, which takes longer to read than a small step does to run. It is
read and cleared at the end of a phase with a new peak, or of one after which it is long; of others the end is noted, at
which it is split when it is read. Where the script records one itself, holders are not looked at from then on.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch

history: Any = import_module("gcprof_history")  # beside this file

MOST_ENTRIES = 300_000  # of a phase, for each device; of a longer one the holders are not known
LOOK_AFTER = 20_000  # allocations within a phase, after which it is read so far
MOST_UNREAD = 5_000  # allocations of phases that have ended
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

    @property
    def is_used(self) -> bool:
        """Whether anything is reserved on any device."""
        return any(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))

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
    if "peak" in stats:
        stats["peak"] = max(stats["peak"], other.get("peak", stats["peak"]))
        return stats
    for name, value in stats.items():
        if isinstance(value, dict) and name in other:
            _with_peaks(value, other[name])
    return stats


class _Workspace(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _OneDevice:
    """The blocks of one device, and the peak of the phase that is."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.space = history.Space()
        self.counted = 0, 0  # allocations and releases before the phase that is
        self.num_read = 0  # of them those in a history that was read
        self.begin()

    def begin(self) -> None:
        self.peak_bytes = -1  # nothing was read of this phase
        self.peak_line: str | None = None
        self.held: list[Any] = []  # blocks, at the peak
        self.lost = False  # a part of this phase's history


@dataclass
class _End:
    """The end of a phase whose history is not read yet, and what the script did right after it."""

    phase: str
    line: str
    known: Known
    counted: dict[int, tuple[int, int]]  # allocations and releases so far, by device
    inputs: list[tuple[int, list[int]]] = field(default_factory=list)  # of models: their devices and addresses
    num_steps: int = 0  # of the main optimizer


class Holders:
    """Reads the allocator's history for the watch, once it has begun."""

    def __init__(self) -> None:
        self.why: str | None = None  # nothing is looked at
        self.devices: dict[int, _OneDevice] = {}
        self.growth = history.Growth()
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id, in order
        self._unread: list[_End] = []
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
                self.grown("", "")
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
            inputs = tensor.device.index, _addresses(tensor)
            if self._unread:
                self._unread[-1].inputs.append(inputs)
            else:
                self._note_inputs(*inputs)
        counted = {device: _counted(counters.stats(device)) for device in self.devices}
        if any(counted[device][0] - one.counted[0] > LOOK_AFTER for device, one in self.devices.items()):
            self.read(phase, line)

    def ended(self, phase: str, step: int, line: str, devices: Mapping[int, tuple[int, int, int]]) -> dict[str, Any]:
        """End a phase: return its line and holders at its peak, on the device with the largest, if that is new."""
        if not self._is_on:
            return {}
        device, (peak_bytes, *_) = max(devices.items(), key=lambda item: item[1])
        key = phase, min(step, 2)
        counted = {number: _counted(counters.hidden[number]) for number in devices}
        known = {number: self.devices.setdefault(number, _OneDevice()) for number in devices}
        is_new, found = peak_bytes > self._most.get(key, -1), dict[str, Any]()
        if not is_new and all(one.counted == counted[number] for number, one in known.items()):
            return {}
        unread = [sum(counted[number]) - one.num_read for number, one in known.items()]
        if is_new or not all(0 <= num <= 2 * MOST_UNREAD for num in unread):  # the script may reset the counters
            self.read(phase, line)
        else:
            self._unread.append(_End(phase, line, self._known(), counted))
        one = known[device]
        if is_new and not one.lost:
            self._most[key] = peak_bytes
            found = {"peak_line": one.peak_line or line, "holders": history.holders(one.held)}
            if one.peak_bytes != peak_bytes:
                found, self.why = {}, UNEQUAL
        for number, one in known.items():
            one.counted = counted[number]
            one.begin()
        return found

    def reset(self, phase: str, line: str, device: int) -> None:
        """Forget the phase's peak so far, as the allocator's statistics do when the script resets them."""
        if self._is_on:
            self.read(phase, line)
            self.devices.setdefault(device, _OneDevice()).begin()

    def stepped(self, step: int) -> None:
        """Look for growth, right after a step of the main optimizer."""
        if not self._is_on or step == 1:
            return
        if self._unread:
            self._unread[-1].num_steps += 1
        else:
            self._look_for_growth()

    def grown(self, phase: str, line: str) -> list[dict[str, Any]]:
        """Return the lines whose blocks have grown from step to step."""
        if self._unread and self._is_on:
            self.read(phase, line)
        return [*self.growth.lines()]

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
        collects = gc.isenabled()
        gc.disable()  # so many objects are made that the script's own garbage would be collected early
        try:
            snapshot = torch._C._cuda_memorySnapshot(None)
            self._record(max_entries=MOST_ENTRIES)
            histories, workspaces = {}, _workspaces()
            for device, entries in enumerate(snapshot["device_traces"]):
                if entries or device in self.devices:
                    one = self.devices.setdefault(device, _OneDevice())
                    one.space.settings = snapshot.get("allocator_settings", {})
                    histories[device] = iter(entries)
                    if len(entries) >= MOST_ENTRIES:
                        one.lost = True
                        self.why = f"not known of phases with more than {MOST_ENTRIES} allocations"
            for end in self._unread:
                for device, entries in histories.items():
                    one, num = self.devices[device], sum(end.counted[device])
                    part = _first(entries, num - one.num_read)
                    one.num_read = num
                    one.live = history.replay(one.live, one.space, part, phase=end.phase).live
                    _describe_all(one.live, end, workspaces)
                for inputs in end.inputs:
                    self._note_inputs(*inputs)
                for _ in range(end.num_steps):
                    self._look_for_growth()
            self._unread.clear()
            now = _End(phase, line, self._known(), {device: _counted(counters.stats(device)) for device in histories})
            for device, entries in histories.items():
                segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
                self._read_last(self.devices[device], entries, segments, now, workspaces)
                self.devices[device].counted = now.counted[device]
                self.devices[device].num_read = sum(now.counted[device])
        except Exception as error:  # noqa: BLE001  it is within the script
            self._is_on, self.why = False, f"not known: {type(error).__name__}: {error}"
            self._record(None)
        finally:
            if collects:
                gc.enable()

    def _read_last(self, one: _OneDevice, entries: Any, segments: Any, now: _End, workspaces: dict[int, int]) -> None:
        """Read the history of the phase that is."""
        replayed = history.replay(one.live, one.space, entries, phase=now.phase)
        one.live = history.of_segments(segments, replayed.live, now.phase)
        one.space = history.Space(segments)
        _describe_all(one.live, now, workspaces)
        if replayed.peak_bytes > one.peak_bytes:
            for block in replayed.held:
                _describe(block, now.line, workspaces)
                if block.category is None and one.live.get(block.address) is not block and block.phase == now.phase:
                    block.category = history.TEMPORARIES
            one.peak_bytes, one.held = replayed.peak_bytes, replayed.held
            one.peak_line = replayed.peak.line if replayed.peak else None

    def _note_inputs(self, device: int, addresses: list[int]) -> None:
        """Note which blocks a model is called with."""
        live = self.devices.setdefault(device, _OneDevice()).live
        for block in filter(None, map(live.get, addresses)):
            if block.category is None and block.phase not in ("forward", "backward"):
                block.category = "inputs"

    def _look_for_growth(self) -> None:
        self.growth.step(block for one in self.devices.values() for block in one.live.values())

    # ---- what is known of storages

    def _known(self) -> Known:
        """Return the storages of parameters, gradients, buffers and optimizer state."""
        known: Known = {}
        owners = [*self._owners.values()]
        roots = [owner for owner in owners if isinstance(owner, torch.nn.Module)]
        optimizers = [owner for owner in owners if not isinstance(owner, torch.nn.Module)]
        named = [(parameter, _holder(name)) for root in roots for name, parameter in root.named_parameters()]
        names = {id(parameter): module for parameter, module in named}
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        others = [(one, "") for group in groups for one in group["params"] if id(one) not in names]
        for parameter, module in (*named, *others):
            _keep(known, [parameter], "parameters", module)
            if parameter.is_leaf and parameter.grad is not None:
                _keep(known, [parameter.grad], "gradients", module)
        for name, buffer in (pair for root in roots for pair in root.named_buffers()):
            _keep(known, [buffer], "buffers", _holder(name))
        for parameter, state in (pair for optimizer in optimizers for pair in optimizer.state.items()):
            _keep(known, _tensors([state]), "optimizer state", names.get(id(parameter), ""))
        return known


def _holder(name: str) -> str:
    """Return the name of the module that holds a parameter or a buffer."""
    return str(history.without_wrappers(name.rpartition(".")[0]))


def _counted(stats: Stats) -> tuple[int, int]:
    """Return how many allocations and releases there were."""
    found = stats["allocation"]["all"]
    return found["allocated"], found["freed"]


def _first(entries: Iterator[Any], num: int) -> Iterator[Any]:
    """Yield entries of a history until there were as many allocations and releases."""
    for entry in entries if num > 0 else ():
        yield entry
        num -= entry["action"] in ("alloc", "free_requested")
        if not num:
            return


def _workspaces() -> dict[int, int]:
    """Return the bytes that cuBLAS was given, by address, as the hollow cuBLAS noted them."""
    if not hasattr(PROCESS, "hollow_workspaces"):
        return {}
    num = ctypes.c_int()
    PROCESS.hollow_workspaces.restype = ctypes.POINTER(_Workspace)
    given = PROCESS.hollow_workspaces(ctypes.byref(num))
    return {given[at].address: given[at].nbytes for at in range(num.value)}


def _describe_all(live: Mapping[int, Any], end: _End, workspaces: dict[int, int]) -> None:
    """Note what is known of blocks at the end of a phase."""
    for block in live.values():
        _describe(block, end.line, workspaces)
        if named := end.known.get(block.address):
            block.category, block.module = named
        elif block.category is None and block.phase == "forward":
            block.category = "activations"


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
