"""Traces one step of a case on the CUDA device of this process, real or hollow: PyTorch's own code says the bytes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from profiler.core.case import Case, Trial
from profiler.core.errors import Unsupported
from profiler.core.trace_data import (
    GIVEN,
    GRANULE,
    TAKEN_BACK,
    WORKSPACES,
    Allocation,
    BlockChoices,
    Call,
    Followed,
    Operator,
    Save,
    Trace,
    blocks_in_use,
    line,
    live,
    summed,
)
from profiler.core.units import bytes_text
from profiler.measuring.bench import Bench
from profiler.measuring.devices import open_device
from profiler.predicting.device_tracer import DeviceTracer, addresses, snapshot
from profiler.predicting.staging.chains import block_choices, followed_of, with_choices_if_known
from profiler.predicting.step_tracer import Categories, between_steps
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.checkpointing.observed_forward import Seen, remembering
from profiler.training.rehearsed_build import NOT_REAL, ZEROS, ValueReads
from profiler.training.workload import Step, Workload, drop_gradients, loss_of, uncollected

WORKING = {  # operators, without their namespace, that use a workspace of a library's choice; so do convolutions
    *("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"),
    *("_addmm_activation", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm"),
}
MOST_OFF = 0.02  # of a peak, that free blocks in other places may make: 1 of 100 models is off, by up to 0.5 %
LOGGED = 4096  # bytes to the host that a step's own logs and metrics may take
MIB = 1 << 20  # only a request above this may get a block with an unsplit rest, which is at most this large
Held = dict[int, tuple[str, str]]  # by the address of a storage: its category, and the module that it belongs to


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
        held_before = _held(workload, optimizer)
        with tracer.follow():
            step(tracer.mark)
    reserved_bytes = tracer.reserved_bytes
    held_after, peak_bytes = _held(workload, optimizer), _plain_peak(step)
    dropped = _dropped(workload) if with_saves else None
    trace = _Step(tracer, held_before, held_after, _workspaces()).trace(dropped)
    if max(live(trace)) != peak_bytes:  # a third step may find the allocator's free blocks elsewhere than a second
        del built, workload, optimizer, step, tracer, dropped, held_before, held_after  # all hold the first model
        open_device(case.device).release()
        built, _, step = _settled(make, seen, ValueReads())
        peak_bytes = _plain_peak(step)
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


def trace_of(tracer: DeviceTracer, dropped: DeviceTracer | None) -> Trace:
    """Return what a tracer has followed of another's step; what lives between steps has no categories.

    `dropped` followed one call of the step's module, whose operators are left out where that ran others.
    """
    step = _Step(tracer, {}, {}, frozenset())
    try:
        return step.trace(dropped, of_call=True)
    except Unsupported:
        return step.trace(None)


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


def _plain_peak(step: Step) -> int:
    """Run a step that nothing follows; return the most bytes that its device's allocator gave."""
    torch.cuda.reset_peak_memory_stats()
    with uncollected():
        step(lambda phase: None)
    return torch.cuda.max_memory_allocated()


def _dropped(workload: Workload) -> DeviceTracer:
    """Follow a forward of which autograd keeps nothing: a block lives as long as the model's own code holds it."""
    tracer = DeviceTracer(workload.module, drops=True)
    with tracer.follow():
        tracer.mark("forward")
        loss = loss_of(workload)
    del loss  # a step holds it, too
    return tracer


@contextmanager
def _remembering_lines() -> Iterator[None]:
    """Make the allocator remember, for each block that is in use, which line of Python asked for it."""
    torch.cuda.memory._record_memory_history(max_entries=1, context="alloc", stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _held(workload: Workload, optimizer: torch.optim.Optimizer) -> Held:
    """Return the storages that live between two steps, by address."""
    held: Held = {}
    for tree, category, owner in between_steps(workload, optimizer):
        for address in addresses(tree):
            held.setdefault(address, (category, owner))
    return held


def _workspaces() -> frozenset[int]:
    """Free the workspaces that cuBLAS keeps; return the addresses of the blocks that this has freed."""
    before = blocks_in_use(snapshot()["segments"])
    torch._C._cuda_clearCublasWorkspaces()
    after = blocks_in_use(snapshot()["segments"])
    return frozenset(block.address for block in before) - {block.address for block in after}


class _Step:
    """Makes a Trace of what a tracer has noted."""

    def __init__(self, tracer: DeviceTracer, before: Held, after: Held, workspaces: frozenset[int]) -> None:
        self._tracer, self._before, self._after, self._workspaces = tracer, before, after, workspaces
        self._blocks = BlockLives(tracer)
        self._lives = [life for life in self._blocks.lives if not life.is_within]
        self._places = {id(life): place for place, life in enumerate(self._lives)}
        self._operators = tracer.operators
        self._last = len(self._operators)
        self._categories = Categories(tracer.marks, tracer.operators)
        arrived = ((self._blocks.at(address, one.at), one.module) for one in tracer.arrived for address in one.storages)
        self._gradients = {id(life): owner for life, owner in arrived if life is not None}

    def trace(self, dropped: DeviceTracer | None, *, of_call: bool = False) -> Trace:
        """Return the step as data. `dropped` is its forward, or a call of its module, that autograd kept nothing of."""
        let_go = self._let_go(dropped, of_call=of_call) if dropped else {}
        allocations = tuple(self._allocation(life, let_go.get(id(life)), dropped is not None) for life in self._lives)
        return Trace(
            allocations=allocations,
            operators=tuple(self._with_hidden(allocations)),
            marks=tuple(self._tracer.marks),
            device="cuda",
            uses_host=self._tracer.num_to_host > LOGGED,
            saves=tuple(self._saves()),
            calls=tuple(
                Call(one.module, one.before, one.last, one.saves, self._found(one.inputs, one.before), outputs)
                for one in self._tracer.calls
                for outputs in (self._found(one.outputs, one.last),)
            ),
        )

    def _allocation(self, life: BlockLife, let_go: int | None, has_let_go: bool) -> Allocation:
        died = self._last if life.died is None else life.died
        made = self._operators[life.born - 1] if life.born else Operator("", "", "before")
        category, owner = self._category(life, made)
        return Allocation(
            life.nbytes + life.unsplit,
            life.born,
            died,
            made.name,
            owner or made.module,
            made.phase,
            category,
            (died if let_go is None else let_go) if has_let_go else None,
            unsplit=life.unsplit,
            line=life.line or self._line_of_forward(life),
        )

    def _category(self, life: BlockLife, made: Operator) -> tuple[str, str]:
        """Return the category and the owning module; "" if that is the module that allocated it."""
        if not life.born:
            unknown = WORKSPACES if life.address in self._workspaces else "inputs"
            return self._before.get(life.address, (unknown, ""))
        if id(life) in self._gradients:
            return "gradients", self._gradients[id(life)]
        if life.died is None and life.address in self._after:
            return self._after[life.address]
        return self._categories.of(made.phase, life.born, life.died), ""

    def _line_of_forward(self, life: BlockLife) -> str:
        """Return the line of the operator whose backward asked for the block."""
        made_by = self._tracer.ran[life.born - 1].made_by if life.born else 0
        return next((made.line for made in self._blocks.made[made_by] if made.line), "")

    def _with_hidden(self, allocations: Sequence[Allocation]) -> Iterator[Operator]:
        """Yield the operators with what they took besides, by the allocator's own peak in each."""
        held = summed(((one.nbytes, one.born, one.died) for one in allocations), self._last)
        asked = summed(((one.nbytes - one.unsplit, one.born, one.died) for one in allocations), self._last)
        for number, (operator, ran) in enumerate(zip(self._operators, self._tracer.ran, strict=True), start=1):
            hidden = ran.peak_bytes - held[number]
            name = operator.name.rpartition("aten.")[2].partition(".")[0]
            grows = name not in WORKING and "convolution" not in name  # how a library's workspace grows is not known
            yield msgspec.structs.replace(
                operator,
                hidden_bytes=hidden,
                unsplit=hidden - (self._blocks.asked_peaks[number] - asked[number]),
                batch_bytes=hidden // 2 // GRANULE * GRANULE if grows else 0,
            )

    def _saves(self) -> Iterator[Save]:
        for saved in self._tracer.saved:
            released = self._last if saved.released is None else saved.released
            place = next(iter(self._found(saved.storages, saved.packed)), None)
            yield Save(place, saved.packed, saved.unpacked, released, released)

    def _found(self, at: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the places of the blocks that were in use at these addresses after an operator."""
        lives = (self._blocks.at(address, number) for address in at)
        return tuple(self._places[id(life)] for life in lives if life is not None and id(life) in self._places)

    def _let_go(self, dropped: DeviceTracer, *, of_call: bool) -> dict[int, int]:
        """Return the last operator before only autograd holds a block of a forward, from a forward that dropped all."""
        blocks, ((first, last), *_) = BlockLives(dropped), _calls(dropped) if of_call else [(0, len(dropped.ran))]
        names = [operator.name for operator in dropped.operators[first:last]]
        let_go = {}
        for before, end in _calls(self._tracer) if of_call else self._categories.forwards:
            if [operator.name for operator in self._operators[before:end]] != names:
                raise Unsupported("the model's next forward runs other operators: what each block holds is not known")
            for number in range(1, len(names) + 1):
                for own, other in zip(self._blocks.made[before + number], blocks.made[first + number], strict=False):
                    if other.died is not None:
                        let_go[id(own)] = before + other.died - first
        return let_go


def _calls(tracer: DeviceTracer) -> list[tuple[int, int]]:
    """Return the numbers of operators around each call of the whole module."""
    return [(call.before, call.last) for call in tracer.calls if not call.module]


class BlockLife:
    """The lifetime of one block; `born` and `died` are numbers of operators, as in an Allocation."""

    __slots__ = ("address", "born", "died", "is_within", "line", "nbytes", "siblings", "unsplit")

    def __init__(self, address: int, nbytes: int, born: int, line: str = "", unsplit: int = 0) -> None:
        self.address, self.nbytes, self.born, self.line = address, nbytes, born, line
        self.unsplit = unsplit  # beside `nbytes`: the part that was not requested
        self.died: int | None = None  # None if it outlives the step
        self.is_within = False  # whether its operator gave it back before it ended
        self.siblings: Sequence[BlockLife] = ()  # with which it shares what is known of their unsplit rests


class BlockLives:
    """All blocks of a step, in the order in which they were given, those in use before it first.

    The history has the requests; the allocator's count of bytes around each operator tells what else their blocks took.
    """

    def __init__(self, tracer: DeviceTracer) -> None:
        self._ran, self._bounds = tracer.ran, deque(tracer.bounds)
        self.lives = [
            BlockLife(block.address, asked, 0, block.line, block.nbytes - asked)
            for block in tracer.before
            for asked in (_rounded(block.requested),)
        ]
        self.made: list[list[BlockLife]] = [[] for _ in range(len(self._ran) + 2)]  # by operator
        self.asked_peaks = [0] * (len(self._ran) + 1)  # by operator: the most bytes in it, without unsplit rests
        self._here = {life.address: life for life in self.lives}
        self._at: dict[int, list[BlockLife]] = defaultdict(list)
        for life in self.lives:
            self._at[life.address].append(life)
        self._asked = sum(life.nbytes for life in self.lives)
        self._held = self._asked + sum(life.unsplit for life in self.lives)
        self._number, self._is_ended = 0, True  # of the operator that runs, or ran last
        self._given: list[BlockLife] = []  # since the allocator's count was last compared
        self._taken: list[BlockLife] = []
        for number, event in enumerate(event for event in tracer.events if event["action"] in (GIVEN, TAKEN_BACK)):
            self._go_to(number, event)
            self._give(event) if event["action"] == GIVEN else self._take(event)
        self._pass(len(self._ran), is_ended=True)

    def at(self, address: int, number: int) -> BlockLife | None:
        """Return the block that was in use at an address after an operator."""
        lives = (life for life in reversed(self._at.get(address, ())) if life.born <= number)
        return next((life for life in lives if life.died is None or life.died >= number), None)

    def _go_to(self, number: int, event: dict[str, Any]) -> None:
        """Go on to the operator that ran, or had run last, when this many events had been recorded."""
        bound = None
        while self._bounds and self._bounds[0][0] <= number:
            bound = self._bounds.popleft()
        if bound:
            self._pass(bound[1], is_ended=bound[2])
        is_next_unseen = self._number < len(self._ran) and self._ran[self._number].start_bytes is None
        if self._is_ended and is_next_unseen and event["action"] == GIVEN:
            self._pass(self._number + 1, is_ended=False)

    def _pass(self, number: int, *, is_ended: bool) -> None:
        if (number, is_ended) <= (self._number, self._is_ended):
            return
        if not self._is_ended:
            self._compare(self._ran[self._number - 1].end_bytes)
        for passed in range(self._number + 1, number + 1):
            self.asked_peaks[passed] = self._asked
        start = self._ran[number - 1].start_bytes
        if start is not None and number > self._number:
            self._compare(start)
        if is_ended and number > self._number:
            self._compare(self._ran[number - 1].end_bytes)
        self._number, self._is_ended = number, is_ended

    def _give(self, event: dict[str, Any]) -> None:
        life = BlockLife(event["addr"], _rounded(event["size"]), self._number, line(event.get("frames", ())))
        self.lives.append(life)
        self.made[life.born].append(life)
        self._here[life.address] = life
        self._at[life.address].append(life)
        self._given.append(life)
        self._asked, self._held = self._asked + life.nbytes, self._held + life.nbytes
        self.asked_peaks[self._number] = max(self.asked_peaks[self._number], self._asked)

    def _take(self, event: dict[str, Any]) -> None:
        life = self._here.pop(event["addr"], None)
        if life is None:
            return
        life.died, life.is_within = self._number, not self._is_ended and life.born == self._number
        self._asked, self._held = self._asked - life.nbytes, self._held - life.nbytes - life.unsplit
        self._taken.append(life)

    def _compare(self, counted: int) -> None:
        """Give what the allocator counts beyond the requests to the blocks that can have an unsplit rest.

        Where an operator was given several, which of them has it shows when the first is taken back.
        """
        given = [life for life in self._given if life.died is None]
        large = [life for life in given if life.nbytes > MIB] or given
        for life in large if counted > self._held else ():
            rest = counted - self._held if life is large[-1] else min(MIB, counted - self._held)
            life.unsplit, life.siblings, self._held = rest, large, self._held + rest
        for gone in self._taken:
            for life in gone.siblings if counted != self._held else ():
                if life.died is None:
                    moved = max(-life.unsplit, min(counted - self._held, gone.unsplit))
                    life.unsplit, gone.unsplit = life.unsplit + moved, gone.unsplit - moved
                    self._held += moved
        self._given, self._taken = [], []


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
