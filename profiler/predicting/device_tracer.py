"""Notes what a step runs on a CUDA device, real or hollow: operators, modules, saved tensors, allocations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from profiler.core.trace_data import Block, Operator, blocks_in_use
from profiler.measuring.meters.operators import bytes_to_host, kind_of
from profiler.predicting.step_tracer import Packet, StepTracer, plain_tensors
from profiler.predicting.trace.in_place import is_in_place, is_sum_in_place, linear
from profiler.training.workload import dense_parts, uncollected

COMPILED = "compiled code"  # what allocates without a call that a dispatch mode sees
MOST_EVENTS = 10_000_000


class Ran(NamedTuple):
    """What the allocator counted around one call of an operator."""

    made_by: int  # in the backward: the number of the forward operator whose node runs; 0 if not known
    start_bytes: int | None  # None for code that allocates without a call
    end_bytes: int
    peak_bytes: int  # the most while it ran


class DeviceTracer(StepTracer):
    """Dispatch mode that numbers the operators, and counts what the allocator had recorded as each began and ended.

    The allocator's history says which block each operator was given and gave back; its statistics say how many bytes
    that were. With `drops`, autograd is given nothing to keep, as in a checkpoint: no backward can follow. `with_lines`
    has the history tell which lines of Python asked.
    """

    patched = staticmethod(mock.patch.multiple)  # a backward on the device has a thread of its own
    saved_elsewhere = "`gcprof rehearse` runs them"

    def __init__(
        self,
        module: nn.Module,
        *,
        with_saves: bool = False,
        drops: bool = False,
        with_modules: bool = True,
        with_lines: bool = False,
    ) -> None:
        super().__init__(module, with_saves=with_saves or drops, with_modules=with_modules)
        self.ran: list[Ran] = []  # of each operator
        self.before: tuple[Block, ...] = ()  # blocks in use when the step began
        self.events: list[dict[str, Any]] = []  # the allocator's history of the step
        self.reserved_bytes = 0
        self.num_to_host = 0  # bytes that were copied to the host
        self.bounds: list[tuple[int, int, bool]] = []  # events of the history before, operator, whether it ended
        self._drops, self._with_lines = drops, with_lines
        self._num_given = self._num_events = 0  # blocks given, and given or taken back, as of the last count
        self._num_first = 0  # of these events, as the history begins
        self._device = torch.cuda.current_device()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, kind_of(func)
        if kind.is_question:
            return func(*args, **kwargs)
        start = self._note_unseen()
        number = len(self.ran) + 1
        self.bounds.append((self._num_events - self._num_first, number, False))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        is_written = is_in_place(func, args) or is_sum_in_place(func, args)
        out = _written(func, args, kwargs) if is_written else func(*args, **kwargs)
        self.num_to_host += bytes_to_host(args, out)
        current, peak = self._count()
        self.bounds.append((self._num_events - self._num_first, number, True))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        phase, module, made_by = self.place(number)
        self.operators.append(Operator(kind.name, module, phase, *kind.work(args, kwargs, out)))
        self.ran.append(Ran(made_by, start, current, peak))
        return out

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Note what runs within, Python's cyclic collector off."""
        self.before = blocks_in_use(snapshot(self._device)["segments"])
        context = "alloc" if self._with_lines else None
        torch.cuda.memory._record_memory_history(
            max_entries=MOST_EVENTS, context=context, stacks="python", clear_history=True
        )
        self._count()
        self._num_first = self._num_events
        torch._C._cuda_resetPeakMemoryStats(self._device)
        try:
            linear_in_place = mock.patch.object(functional, "linear", linear) if self._with_modules else nullcontext()
            with uncollected(), linear_in_place, self.hooked(), self:
                yield
            self.events = snapshot(self._device)["device_traces"][self._device]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self._note_unseen()
        super().mark(phase)

    def _note_unseen(self) -> int:
        """Return the bytes that are allocated; note what has been since the last operator, by code without a call."""
        num_before = self._num_given
        current, peak = self._count()
        if self._num_given != num_before:
            phase, module, made_by = self.place(len(self.ran) + 1)
            self.operators.append(Operator(COMPILED, module, phase))
            self.ran.append(Ran(made_by, None, current, peak))
        return current

    def _count(self) -> tuple[int, int]:
        """Return the bytes that are allocated, and the most since the count began, as the allocator says."""
        counts = torch._C._cuda_memoryStats(self._device)
        held = counts["allocated_bytes"]["all"]
        self.reserved_bytes = max(self.reserved_bytes, counts["reserved_bytes"]["all"]["peak"])
        blocks = counts["allocation"]["all"]
        self._num_given, self._num_events = blocks["allocated"], blocks["allocated"] + blocks["freed"]
        return held["current"], held["peak"]

    def storages(self, tree: Any) -> list[Any]:
        return addresses(tree)

    def keep(self, tensor: torch.Tensor) -> Any:
        return None if self._drops else tensor  # itself, so that memory is as without hooks

    def kept(self, packet: Packet) -> torch.Tensor:
        tensor: torch.Tensor | None = packet.kept
        assert tensor is not None, "no backward follows a forward that drops what it saves"
        return tensor


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Write over the first argument, as autograd does where no dispatch mode is on."""
    in_place = getattr(torch.ops.aten, f"{func._overloadpacket.__name__}_")
    return getattr(in_place, func._overloadname)(*args, **kwargs).detach()


def snapshot(device: int | None = None) -> dict[str, Any]:
    """Return PyTorch's snapshot of the allocator's blocks and history.

    One with lines of Python asks the compiler for those of generated code, and would import it: 5 s of processor time.
    """
    is_late = f"{torch.__name__}._inductor" not in sys.modules
    if is_late:
        vars(torch)["_inductor"] = SimpleNamespace()
    try:
        return dict(torch.cuda.memory._snapshot(device))
    finally:
        if is_late:
            del vars(torch)["_inductor"]


def addresses(tree: Any) -> list[int]:
    """Return the addresses of the CUDA storages of all tensors in any nesting."""
    parts = (part for tensor in plain_tensors(tree) for part in dense_parts(tensor) if part.is_cuda)
    storages = (part.untyped_storage() for part in parts)
    return list(dict.fromkeys(storage.data_ptr() for storage in storages if storage.nbytes()))
