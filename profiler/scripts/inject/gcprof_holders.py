"""What held the memory of each phase at its peak, and what grows from step to step: by the allocator's own history.

PyTorch's allocator keeps a history with Python stacks; it is read and cleared at each mark between two phases, so that
it never is longer than one. Where the script records one itself, holders are not looked at from then on.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

counters: Any = import_module("gcprof_counters").counters  # beside this file
history: Any = import_module("gcprof_history")
lines: Any = import_module("gcprof_lines")

MOST_ENTRIES = 300_000  # of a phase, for each device; of a longer one the holders are not known
LOOK_AFTER = 20_000  # allocations within a phase, after which it is read so far
OWN = "not looked at: the script, or a library that it uses, records the allocator's history itself"
NOT_NATIVE = "not looked at: another allocator than PyTorch's own keeps no history"
UNEQUAL = "not known where the allocator's history does not come to its peak to the byte"
TOO_LONG = f"not known of phases with more than {MOST_ENTRIES} allocations"
RECOMPUTES = "torch/utils/checkpoint.py"
PLAIN = (torch.Tensor, torch.nn.Parameter)
PROCESS = ctypes.CDLL(None)  # with the libraries that are loaded for all
Known = dict[int, tuple[str, str]]  # by the address of a storage: its category, and its module


class _Workspace(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _OneDevice:
    """The blocks of one device, and the peak of the phase that is."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.space = history.Space()
        self.num_allocations = 0  # before the history that is read next
        self.inputs: list[tuple[int, set[int]]] = []
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
        self._modules: dict[int, Callable[[], Any]] = {}
        self._optimizers: dict[int, Callable[[], Any]] = {}
        self._most: dict[tuple[str, int], int] = {}  # of a phase and a step: the largest peak that was told
        self._is_ours = self._is_on = self._is_theirs = False

    def begin(self) -> None:
        """Record the history from when CUDA is used, and leave it to a script that records one."""
        interface: Any = torch._C
        for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
            if hasattr(interface, name):
                setattr(interface, name, self._handing_over(getattr(interface, name)))
        if hasattr(interface, "_cuda_isHistoryEnabled"):
            enabled = interface._cuda_isHistoryEnabled
            interface._cuda_isHistoryEnabled = lambda: self._is_theirs and enabled()
        torch.cuda._lazy_call(self._begin)

    def _handing_over(self, record: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **keywords: Any) -> Any:
            if not self._is_ours and not self._is_theirs:
                self._is_theirs, self.why = True, OWN
                if self._is_on:
                    self._is_on = False
                    self._record(None)
            return record(*words, **keywords)

        return call

    # ---- what the watch tells

    def knows_module(self, module: Any) -> None:
        self._modules.setdefault(id(module), weakref.ref(module))

    def knows_optimizer(self, optimizer: Any) -> None:
        self._optimizers.setdefault(id(optimizer), weakref.ref(optimizer))

    def called(self, phase: str, line: str, *arguments: Any) -> None:
        """Note the inputs of a model that is called now, and read the history so far if it is long."""
        if not self._is_on:
            return
        found: dict[int, set[int]] = {}
        for tensor in _tensors(arguments):
            found.setdefault(tensor.device.index, set()).update(_addresses(tensor))
        for device, addresses in found.items():
            one = self.devices.setdefault(device, _OneDevice())
            num = counters.stats(device)["allocation"]["all"]["allocated"] - one.num_allocations
            one.inputs.append((num, addresses))
            if num > LOOK_AFTER:
                self.read(phase, line)

    def ended(self, phase: str, step: int, line: str, devices: Mapping[int, tuple[int, int, int]]) -> dict[str, Any]:
        """End a phase: return its line and holders at its peak, on the device with the largest, if that is new."""
        if not self._is_on:
            return {}
        self.read(phase, line)
        device, (peak_bytes, *_) = max(devices.items(), key=lambda item: item[1])
        one, key = self.devices.get(device), (phase, min(step, 2))
        found: dict[str, Any] = {}
        if one and not one.lost and peak_bytes > self._most.get(key, -1):
            self._most[key] = peak_bytes
            found = {"peak_line": one.peak_line or line, "holders": history.holders(one.held)}
            if one.peak_bytes != peak_bytes:  # as under a rounding of PYTORCH_CUDA_ALLOC_CONF's
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
            self.why = NOT_NATIVE
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
            self._read(phase, line)
        except Exception as error:  # noqa: BLE001  it is within the script
            self._is_on, self.why = False, f"not known: {type(error).__name__}: {error}"
            self._record(None)

    def _read(self, phase: str, line: str) -> None:
        snapshot = torch._C._cuda_memorySnapshot(None)
        self._record(max_entries=MOST_ENTRIES)
        known = self._known()
        for device, entries in enumerate(snapshot["device_traces"]):
            if entries or device in self.devices:
                one = self.devices.setdefault(device, _OneDevice())
                segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
                self._read_one(one, entries, segments, known, phase, line)
                one.num_allocations = counters.stats(device)["allocation"]["all"]["allocated"]

    def _read_one(self, one: _OneDevice, entries: Any, segments: Any, known: Known, phase: str, line: str) -> None:
        if len(entries) >= MOST_ENTRIES:
            one.lost = True
            self.why = TOO_LONG
        replayed = history.replay(one.live, one.space, entries, phase=phase, inputs=one.inputs)
        workspaces = _workspaces()
        one.inputs = []
        one.live = history.of_segments(segments, replayed.live, phase)
        one.space = history.Space(segments)
        for block in one.live.values():
            self._describe(block, line)
            if block.address in known:
                block.category, block.module = known[block.address]
            elif workspaces.get(block.address) == block.requested:
                block.category = "workspace"
            elif block.category is None and block.phase == "forward":
                block.category = "activations"
        if replayed.peak_bytes > one.peak_bytes:
            for block in replayed.held:
                self._describe(block, line)
                if workspaces.get(block.address) == block.requested:
                    block.category = "workspace"
                elif block.category is None and one.live.get(block.address) is not block and block.phase == phase:
                    block.category = history.TEMPORARIES
            one.peak_bytes, one.held = replayed.peak_bytes, replayed.held
            one.peak_line = replayed.peak.line if replayed.peak else None

    def _describe(self, block: Any, line: str) -> None:
        """Note the line of a block, and forget its stack."""
        if block.line is None:
            block.line = lines.line_of(block.frames) or line
            if block.phase == "backward" and any(frame["filename"].endswith(RECOMPUTES) for frame in block.frames):
                block.category = "recomputed activations"
            block.frames = ()

    # ---- what is known of storages

    def _known(self) -> Known:
        """Return the storages of parameters, gradients, buffers and optimizer state."""
        known: Known = {}
        names: dict[int, str] = {}
        for root in filter(None, (find() for find in self._modules.values())):
            for name, parameter in root.named_parameters():
                names[id(parameter)] = module = name.rpartition(".")[0]
                _keep_parameter(known, parameter, module)
            for name, buffer in root.named_buffers():
                _keep(known, [buffer], "buffers", name.rpartition(".")[0])
        for optimizer in filter(None, (find() for find in self._optimizers.values())):
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if id(parameter) not in names:
                    _keep_parameter(known, parameter, "")
            for parameter, state in optimizer.state.items():
                _keep(known, _tensors([state]), "optimizer state", names.get(id(parameter), ""))
        return known


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


def _keep_parameter(known: Known, parameter: Any, module: str) -> None:
    _keep(known, [parameter], "parameters", module)
    if parameter.is_leaf and parameter.grad is not None:
        _keep(known, [parameter.grad], "gradients", module)


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


def _workspaces() -> dict[int, int]:
    """Return the bytes of each workspace that cuBLAS was given, by address, as the hollow cuBLAS noted them."""
    if not hasattr(PROCESS, "hollow_workspaces"):
        return {}
    num = ctypes.c_int()
    PROCESS.hollow_workspaces.restype = ctypes.POINTER(_Workspace)
    found = PROCESS.hollow_workspaces(ctypes.byref(num))
    return {found[at].address: found[at].nbytes for at in range(num.value)}


def call_of(frame: Any) -> dict[str, Any]:
    """Return the keywords of the call of a module whose hook runs in this frame."""
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return dict(frame.f_locals.get("kwargs") or {}) if frame is not None else {}
