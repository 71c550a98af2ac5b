"""Traces one step of a case on the CUDA device of this process, real or hollow: PyTorch's own code says the bytes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import torch
from torch import nn
from torch.nn import functional

from profiler.core import trace_data
from profiler.core.allocator_history import Space
from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.trace_data import Operator, Trace, blocks_in_use, line, live, summed
from profiler.core.units import bytes_text
from profiler.measuring.devices import open_device
from profiler.measuring.meters.operators import copied_bytes, kind_of
from profiler.predicting import step_tracer
from profiler.predicting.step_tracer import Assumed, BlockLife, Held, StepTracer, linear
from profiler.training.assemble import Assembled, assemble
from profiler.training.known_values import NOT_REAL, ZEROS, ValueReads
from profiler.training.observed_forward import Seen, remembering
from profiler.training.optimizers import hooks_of
from profiler.training.workload import Step, dense_parts, drop_gradients, rounded, uncollected

COMPILED = "compiled code"  # what allocates without a call that a dispatch mode sees
WORKING = {  # operators, without their namespace, that use a workspace of a library's choice; so do convolutions
    *("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"),
    *("_addmm_activation", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm"),
}
MOST_EVENTS = 10_000_000
LOGGED = 4096  # bytes to the host that a step's own logs and metrics may take
MIB = 1 << 20  # only a request above this may get a block with an unsplit rest, which is at most this large


class Ran(NamedTuple):
    """What the allocator counted around one call of an operator."""

    made_by: int  # in the backward: the number of the forward operator whose node runs; 0 if not known
    is_unseen: bool  # whether it is code that allocates without a call
    peak_bytes: int  # the most while it ran


class DeviceTracer(StepTracer):
    """Dispatch mode that numbers the operators, and counts what the allocator had recorded as each began and ended.

    The allocator's history says which block each operator was given and gave back; its statistics say how many bytes
    that were. `with_lines` has the history tell which lines of Python asked.
    """

    kind = "cuda"
    blocks: DeviceBlocks
    patched = staticmethod(mock.patch.multiple)  # a backward on the device has a thread of its own
    saved_elsewhere = "`gcprof rehearse` runs them"

    def __init__(self, module: nn.Module, *, with_lines: bool = False, **how: bool) -> None:
        """`how` is as in StepTracer."""
        super().__init__(module, **how)
        self.ran: list[Ran] = []  # of each operator
        self.before: dict[str, Any] = {}  # the allocator's snapshot when the step began
        self.events: list[dict[str, Any]] = []  # the allocator's history of the step
        self.num_to_host = 0  # bytes that were copied to the host
        self.bounds: list[tuple[int, int, bool]] = []  # events of the history before, operator, whether it ended
        self._with_lines = with_lines
        self._num_given = self._num_events = 0  # blocks given, and given or taken back, as of the last count
        self._num_first = 0  # of these events, as the history begins
        self._device = torch.cuda.current_device()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, kind_of(func)
        if kind.is_question:
            return func(*args, **kwargs)
        self._note_unseen()
        number = len(self.ran) + 1
        self.bounds.append((self._num_events - self._num_first, number, False))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        is_written = step_tracer.is_in_place(func, args) or step_tracer.is_sum_in_place(func, args)
        if is_written:  # as autograd does where no dispatch mode is on
            in_place = getattr(torch.ops.aten, f"{func._overloadpacket.__name__}_")
            out = getattr(in_place, func._overloadname)(*args, **kwargs).detach()
        else:
            out = func(*args, **kwargs)
        copied = copied_bytes(kind.name, args, out)
        self.num_to_host += copied if copied and out.is_cpu else 0
        peak_bytes = self._count()
        self.bounds.append((self._num_events - self._num_first, number, True))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        phase, module, made_by = self.place(number)
        self.operators.append(Operator(kind.name, module, phase, *kind.work(args, kwargs, out)))
        self.ran.append(Ran(made_by, False, peak_bytes))
        return out

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Note what runs within, Python's cyclic collector off."""
        self.before = snapshot(self._device)
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
            self.blocks, self.uses_host = DeviceBlocks(self), self.num_to_host > LOGGED
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self._note_unseen()
        super().mark(phase)

    def _note_unseen(self) -> None:
        """Note what has been allocated since the last operator, by code without a call."""
        num_before, peak_bytes = self._num_given, self._count()
        if self._num_given != num_before:
            phase, module, made_by = self.place(len(self.ran) + 1)
            self.operators.append(Operator(COMPILED, module, phase))
            self.ran.append(Ran(made_by, True, peak_bytes))

    def _count(self) -> int:
        """Count the blocks that were given and taken back; return the most bytes since the count began."""
        counts = torch._C._cuda_memoryStats(self._device)
        blocks = counts["allocation"]["all"]
        self._num_given, self._num_events = blocks["allocated"], blocks["allocated"] + blocks["freed"]
        return int(counts["allocated_bytes"]["all"]["peak"])

    def storages(self, tree: Any) -> list[int]:
        parts = (part for tensor in step_tracer.plain_tensors(tree) for part in dense_parts(tensor) if part.is_cuda)
        storages = (part.untyped_storage() for part in parts)
        return list(dict.fromkeys(storage.data_ptr() for storage in storages if storage.nbytes()))

    def trace(self, before: Held, after: Held, dropped: StepTracer | None = None, *, of_call: bool = False) -> Trace:
        """Return a followed step as data, as StepTracer does; what gradients need has the line of their forward."""
        for life in self.blocks.lives:
            made_by = self.ran[life.born - 1].made_by if life.born and not life.line else 0
            if made_by:
                life.line = next((made.line for made in self.blocks.made[made_by] if made.line), "")
        trace, operators = super().trace(before, after, dropped, of_call=of_call), list[Operator]()
        held = summed(((one.nbytes, one.born, one.died) for one in trace.allocations), len(self.ran))
        asked = summed(((one.nbytes - one.unsplit, one.born, one.died) for one in trace.allocations), len(self.ran))
        for number, (operator, ran) in enumerate(zip(self.operators, self.ran, strict=True), start=1):
            hidden = ran.peak_bytes - held[number]  # what it took besides, by the allocator's own peak in it
            name = operator.name.rpartition("aten.")[2].partition(".")[0]
            grows = name not in WORKING and "convolution" not in name  # how a library's workspace grows is not known
            own = msgspec.structs.replace(
                operator,
                hidden_bytes=hidden,
                unsplit=hidden - (self.blocks.asked_peaks[number] - asked[number]),
                batch_bytes=hidden // 2 // trace_data.GRANULE * trace_data.GRANULE if grows else 0,
            )
            operators.append(own)
        return msgspec.structs.replace(trace, operators=tuple(operators))


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


class DeviceBlocks(step_tracer.BlockLives):
    """All blocks of a step on a device, by the allocator's history."""

    def __init__(self, tracer: DeviceTracer) -> None:
        super().__init__()
        segments, settings = (tracer.before[name] for name in ("segments", "allocator_settings"))
        self._ran, bounds, space = tracer.ran, deque(tracer.bounds), Space(segments, settings)
        self.asked_peaks = [0] * (len(self._ran) + 1)  # by operator: the most bytes in it, without unsplit rests
        for block in blocks_in_use(segments):
            asked = rounded(block.requested, "cuda")
            self.give(BlockLife(block.address, asked, 0, block.line, block.nbytes - asked))
        self._asked = sum(life.nbytes for life in self.lives)
        self._number, self._is_ended = 0, True  # of the operator that runs, or ran last
        num_events = 0  # blocks given or taken back
        for event in tracer.events:
            taken, is_given = space.follow(event), event["action"] == trace_data.GIVEN
            if not is_given and event["action"] != trace_data.TAKEN_BACK:
                continue
            bound = None
            while bounds and bounds[0][0] <= num_events:
                bound = bounds.popleft()
            if bound:  # the operator that ran, or had run last, when this many events had been recorded
                self._pass(bound[1], is_ended=bound[2])
            num_events += 1
            is_next_unseen = self._number < len(self._ran) and self._ran[self._number].is_unseen
            if self._is_ended and is_next_unseen and is_given:
                self._pass(self._number + 1, is_ended=False)
            if is_given:
                nbytes = rounded(event["size"], "cuda")
                self.give(BlockLife(event["addr"], nbytes, self._number, line(event.get("frames", ())), taken - nbytes))
                self._asked += nbytes
                self.asked_peaks[self._number] = max(self.asked_peaks[self._number], self._asked)
            elif (gone := self.here.pop(event["addr"], None)) is not None:
                gone.died = self._number
                gone.is_within = not self._is_ended and gone.born == self._number
                self._asked -= gone.nbytes
        self._pass(len(self._ran), is_ended=True)

    def _pass(self, number: int, *, is_ended: bool) -> None:
        if (number, is_ended) > (self._number, self._is_ended):
            self.asked_peaks[self._number + 1 : number + 1] = [self._asked] * (number - self._number)
            self._number, self._is_ended = number, is_ended


MOST_OFF = 0.02  # of a peak, that free blocks in other places may make: 1 of 100 models is off, by up to 0.5 %


class ReadsValues(Unsupported):
    """Raised if a step fails after its forward has read values."""


def trace_case(
    case: Case,
    *,
    in_calls: bool = False,
    with_saves: bool = False,
    with_lines: bool = False,
    data_directory: str | None = None,
) -> tuple[Assembled, Trace, Assumed]:
    """Return the case's model on its device, the trace of its second step, and how far from a plain step's its peak is.

    `with_saves` records what autograd saves, from which stages are cut; the case must then be one without
    checkpointing. `with_lines` finds the line of Python that asked for each block. `in_calls` is that of
    `assemble`. Raises Unsupported for several ranks, with saves if the model packs them by hooks of its
    own, and where a step takes other bytes than when it is followed; ReadsValues if the first step reads values and
    fails; and whatever the model raises.
    """
    if case.ranks:
        raise Unsupported("what ranks hold for each other has no category yet in a rehearsed step: leave the ranks out")
    seen: Seen = {}
    reads = ValueReads()
    make = partial(assemble, case, data_directory=data_directory, in_calls=in_calls)
    with _remembering_lines() if with_lines else nullcontext():
        built, optimizer, step = _settled(make, seen, reads)
        workload = built.workload
        tracer = DeviceTracer(
            workload.module,
            with_saves=with_saves,
            with_modules=not built.applied.changes_kernels,
            with_lines=with_lines,
        )
        before = tracer.held(workload, optimizer)
        built.seed(2)
        with tracer.follow():
            step(tracer.mark)
    after, peak_bytes = tracer.held(workload, optimizer), _plain_peak(built, step)
    built.seed(2)
    dropped = DeviceTracer(workload.module, drops=True).follow_dropping(workload) if with_saves else None
    in_use = blocks_in_use(snapshot()["segments"])
    torch._C._cuda_clearCublasWorkspaces()
    left = {block.address for block in blocks_in_use(snapshot()["segments"])}
    workspaces = {block.address: (trace_data.WORKSPACES, "") for block in in_use if block.address not in left}
    trace = tracer.trace(workspaces | before, after, dropped)
    if max(live(trace)) != peak_bytes:  # a third step may find the allocator's free blocks elsewhere than a second
        for parameter in workload.module.parameters():
            hooks_of(parameter).clear()  # which may hold the optimizer that steps in the backward, and so the model
        del built, workload, optimizer, step, tracer, dropped, before, after, parameter  # all hold the first model
        open_device(case.device).release()
        built, _, step = _settled(make, seen, ValueReads())
        peak_bytes = _plain_peak(built, step)
    traced_bytes = max(live(trace))
    if abs(traced_bytes - peak_bytes) > MOST_OFF * peak_bytes:
        raise Unsupported(f"followed, the step takes {bytes_text(traced_bytes)}, and else {bytes_text(peak_bytes)}")
    remarks = [f"{ZEROS}: {reads}; {NOT_REAL}"] if str(reads) else []
    if off := traced_bytes - peak_bytes:
        far = f"{bytes_text(abs(off))} {'above' if off > 0 else 'below'}"
        text = f"the peak of the followed step is {far} that of the step alone, {bytes_text(peak_bytes)}"
        remarks.append(f"{text}: free blocks are elsewhere")
    return built, trace, Assumed(remarks=tuple(remarks))


def _settled(
    make: Callable[[], Assembled], seen: Seen, reads: ValueReads
) -> tuple[Assembled, torch.optim.Optimizer, Step]:
    """Return a fresh model after the steps that allocate what stays: gradients and optimizer state.

    Raises ReadsValues if the first step fails after its forward has read values.
    """
    with remembering(seen):
        built = make()
    drop_gradients(built.workload)  # of leaves that the factory does not make anew
    optimizer, step = built.trainer()
    with ExitStack() as watching:
        forwards = {"forward": lambda: watching.enter_context(reads), "backward": watching.close}
        try:
            step(lambda phase: forwards.get(phase, lambda: None)())
        except RuntimeError as error:
            if not reads.places:
                raise
            raise ReadsValues(f"{ZEROS}: {reads}") from error
    for _ in range(built.workload.settling - 1):
        step(lambda phase: None)
    return built, optimizer, step


def _plain_peak(built: Assembled, step: Step) -> int:
    """Run the step again, which nothing follows; return the most bytes that its device's allocator gave."""
    built.seed(2)  # blocks that are left out at random are the same
    torch.cuda.reset_peak_memory_stats()
    with uncollected():
        step(lambda phase: None)
    return torch.cuda.max_memory_allocated()


@contextmanager
def _remembering_lines() -> Iterator[None]:
    """Make the allocator remember, for each block that is in use, which line of Python asked for it."""
    torch.cuda.memory._record_memory_history(max_entries=1, context="alloc", stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
