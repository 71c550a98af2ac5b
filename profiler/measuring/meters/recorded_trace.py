"""Turns the recording of a step into a Trace: storages with their operators, modules, phases, categories and lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from profiler.core.allocator_history import Event
from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace, recompute_ends
from profiler.measuring.meters.allocations import Recording
from profiler.measuring.meters.profiled_calls import Call, Profiled
from profiler.training.workload import rounded

WORKING = {  # operators, without their namespace, that use a workspace of a library's choice; so do convolutions
    *("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"),
    *("_addmm_activation", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm"),
}


class _Life(NamedTuple):
    """The lifetime of a block: the first and last entry that use it; the last is None if it outlives the step."""

    event: Event
    nbytes: int
    born: int
    died: int | None
    call: Call


def trace(recording: Recording) -> Trace:
    """Return the recorded step; its entries are the operators, split where one allocates after it has freed.

    So the largest sum of live bytes over all entries is the allocator's own peak, to the byte. `moved_bytes` of an
    operator are the bytes of its inputs; FLOPs are not counted. What a backward node allocates has the line of the
    operator whose backward it is.
    """
    profiled = Profiled(recording.tree)
    steps = _Steps(recording, profiled)
    categories = _Categories(recording, steps.marks, steps.operators)
    return Trace(
        allocations=(*steps.before(), *steps.during(categories)),
        operators=tuple(steps.operators),
        marks=tuple(steps.marks),
        device="cuda",
    )


class _Steps:
    """Builds the entries of a trace, the lifetimes of its blocks, and its phases."""

    def __init__(self, recording: Recording, profiled: Profiled) -> None:
        self.operators: list[Operator] = []
        self.marks: list[tuple[str, int]] = []
        self._recording = recording
        self._profiled = profiled
        self._begun: list[int] = []  # when each entry began
        self._calls: list[int] = []  # the call of each entry
        self._sizes: list[tuple[int, int, int, int]] = []  # of each allocation: bytes, entry, call, total live after it
        self._lines: dict[int, str] = {}  # by call: the line of its first allocation
        self._allocations = [event for event in recording.events if event.is_allocation]
        self._freed_before = _freed_before(recording.events)
        for item in profiled.items:
            self._take(*item)
        self._lives = self._follow()

    def before(self) -> Iterator[Allocation]:
        """Yield the blocks that were in use before the step."""
        freed = self._freed_from_before
        for block in self._recording.before:
            default = WORKSPACES if block.address in self._recording.workspaces else "inputs"
            category, module = self._recording.held_before.get(block.address, (default, ""))
            died = freed.get(block.address, len(self.operators))
            unsplit = block.nbytes - rounded(block.requested, "cuda")
            yield Allocation(block.nbytes, 0, died, "", module, "before", category, unsplit=unsplit, line=block.line)

    def during(self, categories: _Categories) -> Iterator[Allocation]:
        """Yield the blocks that were allocated in the step."""
        for place, life in enumerate(self._lives):
            phase = self.operators[life.born - 1].phase
            category, owner = categories.of(place, life)
            line = life.event.line or self._line_of_forward(life.call)
            yield Allocation(
                life.nbytes,
                life.born,
                len(self.operators) if life.died is None else life.died,
                life.call.name,
                owner or life.call.module,
                phase,
                category,
                unsplit=life.nbytes - rounded(life.event.requested, "cuda"),
                line=line,
                batch_power=0 if self._is_workspace(life) else 1,
            )

    def _is_workspace(self, life: _Life) -> bool:
        """Whether a product or a convolution used the block only while it ran: how such a block grows is not known."""
        name = life.call.name.rpartition(".")[2]
        if life.died is None or not (name in WORKING or "convolution" in name):
            return False
        return self._profiled.calls[self._calls[life.died - 1]] is life.call

    def _take(self, began: int, kind: str, what: Any) -> None:
        if kind == "phase":
            self.marks.append((what, len(self.operators)))
        elif kind == "call":
            if self.marks[-1][0] != "end":
                self._begin(began, what)
        else:
            self._allocate(began, *what)

    def _begin(self, began: int, call: int) -> None:
        self._entry = call
        self._begun.append(began // 1000)
        self._calls.append(call)
        one = self._profiled.calls[call]
        phase = "recompute" if one.is_recompute else self.marks[-1][0]
        self.operators.append(Operator(one.name, one.module, phase, moved_bytes=one.moved_bytes))

    def _allocate(self, began: int, call: int, fields: Any) -> None:
        place = len(self._sizes)
        event = self._allocations[place]
        assert event.address == fields.ptr, "the profiler and the allocator's history tell of one sequence"
        follows = bool(self._sizes) and self._sizes[-1][1] == len(self.operators)
        if call != self._entry or (follows and self._freed_before[place]):
            self._begin(began, call)
        self._sizes.append((fields.alloc_size, len(self.operators), call, fields.total_allocated))
        self._lines.setdefault(call, event.line)

    def _follow(self) -> list[_Life]:
        """Return the lifetime of each block allocated in the step; record when blocks from before it were freed."""
        recording, born_at = self._recording, [entry for _, entry, _, _ in self._sizes]
        assert len(born_at) == len(self._allocations), "the profiler saw every allocation"
        here: dict[int, int] = {}  # by address: the index of the block's allocation
        died: dict[int, int] = {}  # by that index: the last entry
        self._freed_from_before: dict[int, int] = {}
        live, place = sum(block.nbytes for block in recording.before), -1
        sizes = {block.address: block.nbytes for block in recording.before}
        bounds = [(number, before) for (_, number), (_, before) in zip(recording.marks, self.marks, strict=True)]
        for number, event in enumerate(recording.events):
            if event.is_allocation:
                place += 1
                here[event.address] = place
                sizes[event.address], _, _, total = self._sizes[place]
                live += sizes[event.address]
                assert live == total, "the blocks add up to what the allocator says"
                continue
            live -= sizes.pop(event.address)
            low = born_at[place] if place >= 0 else 0
            high = born_at[place + 1] - 1 if place + 1 < len(born_at) else len(self.operators)
            at = self._entry_at(number, event, bounds, low, high)
            if event.address in here:
                died[here.pop(event.address)] = at
            else:
                self._freed_from_before[event.address] = at
        return [
            _Life(event, nbytes, entry, died.get(index), self._profiled.calls[call])
            for index, (event, (nbytes, entry, call, _)) in enumerate(zip(self._allocations, self._sizes, strict=True))
        ]

    def _entry_at(self, number: int, event: Event, bounds: list[tuple[int, int]], low: int, high: int) -> int:
        """Return the last entry in which a freed block was in use: by time, within its phase and two allocations."""
        for first, before in bounds:
            if number < first:
                high = max(low, min(high, before))
                break
            low = min(high, max(low, before))
        return max(low, min(high, bisect_right(self._begun, event.time_us)))

    def _line_of_forward(self, call: Call) -> str:
        made_by = self._profiled.operator_of.get(call.node) if call.node else None
        return "" if made_by is None else self._lines.get(made_by, "")


class _Categories:
    """Finds the category of a storage: by its address if that is known, else by when it was in use."""

    def __init__(self, recording: Recording, marks: list[tuple[str, int]], operators: list[Operator]) -> None:
        self._after = recording.held_after
        self._operators = operators
        spans = pairwise(marks)
        self._forwards = [(before, last) for (phase, before), (_, last) in spans if phase == "forward"]
        self._gradients = _arrived(recording)
        self._ends = recompute_ends(operators)

    def of(self, place: int, life: _Life) -> tuple[str, str]:
        """Return the category and the owning module; "" if that is the module that allocated it."""
        if place in self._gradients:
            return "gradients", self._gradients[place]
        if life.died is None and life.event.address in self._after:
            return self._after[life.event.address]
        return self._by_time(life), ""

    def _by_time(self, life: _Life) -> str:
        phase = self._operators[life.born - 1].phase
        last = len(self._operators) + 1 if life.died is None else life.died
        if phase == "forward":
            end = next(last for before, last in self._forwards if before < life.born <= last)
            return "saved" if last > end else "temporaries"
        return "recomputed" if phase == "recompute" and last > self._ends[life.born] else "temporaries"


def _arrived(recording: Recording) -> dict[int, str]:
    """Return the module of each gradient, by the index of its allocation."""
    found: dict[int, str] = {}
    here: dict[int, int] = {}
    arrivals, place = iter(sorted(recording.gradients, key=lambda one: one[1])), -1
    arrival = next(arrivals, None)
    for number, event in enumerate((*recording.events, None)):
        while arrival and arrival[1] <= number:
            if arrival[0] in here:
                found[here[arrival[0]]] = arrival[2]
            arrival = next(arrivals, None)
        if event is None:
            continue
        if event.is_allocation:
            place += 1
            here[event.address] = place
        else:
            here.pop(event.address, None)
    return found


def _freed_before(events: Iterable[Event]) -> list[bool]:
    """Return, for each allocation, whether a block was freed since the previous one."""
    found, freed = [], False
    for event in events:
        if event.is_allocation:
            found.append(freed)
        freed = not event.is_allocation
    return found
