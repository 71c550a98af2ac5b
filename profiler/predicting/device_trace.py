"""Traces one step of a case on the CUDA device of this process, real or hollow: PyTorch's own code says the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from profiler.core.allocator_history import blocks_in_use
from profiler.core.case import Case, Trial
from profiler.core.errors import Unsupported
from profiler.core.trace_data import WORKSPACES, BlockChoices, Followed, Trace, live
from profiler.core.units import bytes_text
from profiler.measuring.bench import Bench
from profiler.measuring.devices import open_device
from profiler.predicting.device_tracer import DeviceTracer, snapshot
from profiler.predicting.staging.chains import block_choices, followed_of, with_choices_if_known
from profiler.predicting.step_tracer import Held
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.known_values import NOT_REAL, ZEROS, ValueReads
from profiler.training.observed_forward import Seen, remembering
from profiler.training.workload import Step, drop_gradients, uncollected

MOST_OFF = 0.02  # of a peak, that free blocks in other places may make: 1 of 100 models is off, by up to 0.5 %


class ReadsValues(Unsupported):
    """Raised if a step fails after its forward has read values."""


class DeviceStep(NamedTuple):
    """A model after a traced step, the trace, and the most bytes that the allocator had reserved in it."""

    built: Assembled
    trace: Trace
    reserved_bytes: int
    value_reads: str = ""  # which values a forward reads, in words: a hollow device has none
    off: str = ""  # how far the traced peak is from that of the step alone, in words, if at all

    @property
    def remarks(self) -> tuple[str, ...]:
        """What makes the trace's bytes others than those of the step on a GPU."""
        reads = f"{ZEROS}: {self.value_reads}; {NOT_REAL}" if self.value_reads else ""
        return tuple(filter(None, (reads, self.off)))


def trace_case(
    case: Case,
    *,
    in_calls: bool = False,
    with_saves: bool = False,
    with_lines: bool = False,
    data_directory: str | None = None,
    build: Build | None = None,
) -> DeviceStep:
    """Return the case's model on its device, and the trace of its second step; how far from a plain step's its peak is.

    `with_saves` records what autograd saves, from which stages are cut; the case must then be one without
    checkpointing. `with_lines` finds the line of Python that asked for each block. `in_calls` and `build`
    are those of `assemble`. Raises Unsupported for several ranks, with saves if the model packs them by hooks of its
    own, and where a step takes other bytes than when it is followed; ReadsValues if the first step reads values and
    fails; and whatever the model raises.
    """
    if case.ranks:
        raise Unsupported("what ranks hold for each other has no category yet in a rehearsed step: leave the ranks out")
    seen: Seen = {}
    reads = ValueReads()
    make = partial(assemble, case, data_directory=data_directory, build=build, in_calls=in_calls)
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
    reserved_bytes = tracer.reserved_bytes
    after, peak_bytes = tracer.held(workload, optimizer), _plain_peak(built, step)
    built.seed(2)
    dropped = DeviceTracer(workload.module, drops=True).follow_dropping(workload) if with_saves else None
    trace = tracer.trace(_workspaces() | before, after, dropped)
    if max(live(trace)) != peak_bytes:  # a third step may find the allocator's free blocks elsewhere than a second
        del built, workload, optimizer, step, tracer, dropped, before, after  # all hold the first model
        open_device(case.device).release()
        built, _, step = _settled(make, seen, ValueReads())
        peak_bytes = _plain_peak(built, step)
    traced_bytes = max(live(trace))
    if abs(traced_bytes - peak_bytes) > MOST_OFF * peak_bytes:
        raise Unsupported(f"followed, the step takes {bytes_text(traced_bytes)}, and else {bytes_text(peak_bytes)}")
    off = traced_bytes - peak_bytes
    far = f"{bytes_text(abs(off))} {'above' if off > 0 else 'below'}"
    text = f"the peak of the followed step is {far} that of the step alone, {bytes_text(peak_bytes)}"
    told = f"{text}: free blocks are elsewhere" if off else ""
    return DeviceStep(built, trace, reserved_bytes, str(reads), told)


def follow_case(trial: Trial, *, with_choices: bool = False) -> Followed:
    """Return a step of the trial's case on its device, with lines of code; raises as `trace_case` does.

    `with_choices` adds the floors and peaks of other block choices, if the hooks that these need do not fail; the case
    must be one without checkpointing.
    """
    bench = Bench(trial, lambda stage: None)
    bench.passes()  # for its note on what a device without arithmetic leaves out
    trace = partial(trace_case, trial.case, with_lines=True, data_directory=trial.data_directory)

    def followed(with_choices: bool) -> Followed:
        step = trace(with_saves=with_choices)
        notes = (*step.built.applied.notes, *bench.all_notes())
        remarks = (*(note.text for note in notes), *step.remarks)
        return followed_of(step.built, step.trace, remarks, with_choices=with_choices)

    return with_choices_if_known(followed, bench.device.release) if with_choices else followed(False)


def choices(case: Case) -> BlockChoices:
    """Return floors and peaks of a case's blocks and of the model's other choices. Raises as `trace_case` does."""
    step = trace_case(case.baseline, with_saves=True)
    return block_choices(step.trace, step.built.workload)


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


def _workspaces() -> Held:
    """Free the workspaces that cuBLAS keeps; return the blocks that this has freed, by address."""
    before = blocks_in_use(snapshot()["segments"])
    torch._C._cuda_clearCublasWorkspaces()
    after = blocks_in_use(snapshot()["segments"])
    freed = {block.address for block in before} - {block.address for block in after}
    return dict.fromkeys(freed, (WORKSPACES, ""))
