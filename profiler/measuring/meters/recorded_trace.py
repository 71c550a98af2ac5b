"""Turns the recording of a step into a Trace: storages with their operators, modules, phases, categories and lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from profiler.core.allocator_history import Event
from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace
from profiler.measuring.meters.allocations import MODULE, PHASE, Recording
from profiler.training.workload import rounded

NODE = "autograd::engine::evaluate_function: "  # what the profiler calls the run of one node of autograd
COMPILED_CALL, COMPILED = "## Call CompiledFxGraph", "compiled code"  # torch._inductor/output_code.py; as we call it
Sequence = tuple[int, int]  # a thread, and the number that autograd gave there to the node of an operator


class _Place(NamedTuple):
    """What is around an event of the profiler's tree."""

    module: str = ""
    name: str = ""  # of the innermost thing that has one
    depth: int = 0  # how many nodes of autograd are around it: in a backward within one, two
    node: Sequence | None = None  # the innermost of them
    call: int | None = None  # the operator, by its place among all


class _Call(NamedTuple):
    """One call of one operator, or what else allocates."""

    name: str
    module: str
    is_recompute: bool
    node: Sequence | None  # of autograd, in the backward
    moved_bytes: int


class _Life(NamedTuple):
    """The first and last entry during which a block is in use; the last is None where it outlives the step."""

    event: Event
    nbytes: int
    born: int
    died: int | None
    call: _Call


def trace(recording: Recording) -> Trace:
    """The recorded step. Its entries are the operators, each divided where it allocates after it has freed.

    So the most that is live during any entry is the allocator's own peak, to the byte. In `moved_bytes` of operators is
    what they read, and what was allocated for them; FLOPs are not counted. What backward nodes allocate has the line of
    the operator whose backward they are.
    """
    profiled = _Profiled(recording.tree)
    steps = _Steps(recording, profiled)
    categories = _Categories(recording, steps.marks, steps.operators)
    return Trace(
        allocations=(*steps.before(), *steps.during(categories)),
        operators=tuple(steps.operators),
        marks=tuple(steps.marks),
        device="cuda",
    )


class _Profiled:
    """The calls and allocations of the profiler's tree, in order of time."""

    def __init__(self, tree: Iterable[Any]) -> None:
        self.calls: list[_Call] = []
        self.items: list[tuple[int, str, Any]] = []  # when it began; "call", "allocation" or "phase"; what it is
        self.operator_of: dict[Sequence, int] = {}  # the last operator that made the node
        self.home: int | None = None  # the thread of the forward
        for event in tree:
            self._walk(event, _Place())
        self.items.sort(key=lambda item: item[0])  # stable: what is around an event stays before it

    def _walk(self, event: Any, place: _Place) -> None:
        kind = str(event.tag)
        if kind.endswith("Allocation"):
            self._allocation(event, place)
        elif kind.endswith("TorchOp"):
            place = self._inside(event, place)
        for child in event.children:
            self._walk(child, place)

    def _allocation(self, event: Any, place: _Place) -> None:
        fields = event.extra_fields
        if fields.device.type == "cuda" and fields.alloc_size > 0:
            call = self._call(event, place, place.name) if place.call is None else place.call
            self.items.append((event.start_time_ns, "allocation", (call, fields)))

    def _inside(self, event: Any, place: _Place) -> _Place:
        """The place of what an event is around."""
        name, sequence = event.name, (event.start_tid, event.extra_fields.sequence_number)
        if name.startswith(PHASE):
            self.home = event.start_tid
            self.items.append((event.start_time_ns, "phase", name.removeprefix(PHASE)))
        elif name.startswith(MODULE):
            return place._replace(module=name.removeprefix(MODULE), name="", call=None)
        elif name.startswith(NODE):
            return self._node(event, place)
        elif "::" in name and place.call is None:
            inside = place._replace(name=_operator_name(name))
            if not _is_composite(name):
                inside = inside._replace(call=self._call(event, inside, inside.name))
                self.operator_of[sequence] = len(self.calls) - 1
            return inside
        elif place.call is None:
            return place._replace(name=COMPILED if name.startswith(COMPILED_CALL) else name)
        return place

    def _call(self, event: Any, place: _Place, name: str) -> int:
        fields = event.extra_fields
        is_recompute = place.depth > 0 and getattr(fields, "sequence_number", -1) >= 0
        moved = 0 if _is_view(name) else _read_bytes(getattr(fields, "inputs", ()))
        self.calls.append(_Call(name, place.module, is_recompute, place.node, moved))
        self.items.append((event.start_time_ns, "call", len(self.calls) - 1))
        return len(self.calls) - 1

    def _node(self, event: Any, place: _Place) -> _Place:
        """A node is of the thread that ran the forward; in a backward within a node, of the one that recomputed it."""
        thread = self.home if place.depth == 0 or self.home is None else event.start_tid
        node = (thread or 0, event.extra_fields.sequence_number)
        made_by = self.operator_of.get(node)
        module = "" if made_by is None else self.calls[made_by].module
        return _Place(module, event.name.removeprefix(NODE), place.depth + 1, node)


class _Steps:
    """The entries of a trace, the lives of the blocks in them, and the phases."""

    def __init__(self, recording: Recording, profiled: _Profiled) -> None:
        self.operators: list[Operator] = []
        self.marks: list[tuple[str, int]] = []
        self._recording = recording
        self._profiled = profiled
        self._begun: list[int] = []  # when each entry began
        self._sizes: list[tuple[int, int, int, int]] = []  # of each allocation: bytes, entry, call, total live after it
        self._lines: dict[int, str] = {}  # by call: that of its first allocation
        self._allocations = [event for event in recording.events if event.is_allocation]
        self._freed_before = _freed_before(recording.events)
        for item in profiled.items:
            self._take(*item)
        self._lives = self._follow()

    def before(self) -> Iterator[Allocation]:
        """What was in use before the step."""
        freed = self._freed_from_before
        for block in self._recording.before:
            default = WORKSPACES if block.address in self._recording.workspaces else "inputs"
            category, module = self._recording.held_before.get(block.address, (default, ""))
            died = freed.get(block.address, len(self.operators))
            unsplit = block.nbytes - rounded(block.requested, "cuda")
            yield Allocation(block.nbytes, 0, died, "", module, "before", category, unsplit=unsplit, line=block.line)

    def during(self, categories: _Categories) -> Iterator[Allocation]:
        """What was allocated in the step."""
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
            )

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
        """The life of each block that was given in the step; of those from before, when they were taken back."""
        recording, born_at = self._recording, [entry for _, entry, _, _ in self._sizes]
        assert len(born_at) == len(self._allocations), "the profiler saw every allocation"
        here: dict[int, int] = {}  # by address: its place
        died: dict[int, int] = {}  # by place
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
        """The last entry in which a block was in use: by the clock, within its phase and between two allocations."""
        for first, before in bounds:
            if number < first:
                high = max(low, min(high, before))
                break
            low = min(high, max(low, before))
        return max(low, min(high, bisect_right(self._begun, event.time_us)))

    def _line_of_forward(self, call: _Call) -> str:
        made_by = self._profiled.operator_of.get(call.node) if call.node else None
        return "" if made_by is None else self._lines.get(made_by, "")


class _Categories:
    """Tells what a storage was for: by its address where it has a name, else by when it was in use."""

    def __init__(self, recording: Recording, marks: list[tuple[str, int]], operators: list[Operator]) -> None:
        self._after = recording.held_after
        self._operators = operators
        spans = pairwise(marks)
        self._forwards = [(before, last) for (phase, before), (_, last) in spans if phase == "forward"]
        self._gradients = _arrived(recording)
        self._ends = [0] * (len(operators) + 2)  # by entry: the last of the recompute that it is in
        for number in range(len(operators), 0, -1):
            goes_on = number < len(operators) and _is_recompute(operators[number])
            self._ends[number] = self._ends[number + 1] if goes_on else number

    def of(self, place: int, life: _Life) -> tuple[str, str]:
        """The category, and the module that owns it; "" where that is the one that made it."""
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


def _is_recompute(operator: Operator) -> bool:
    """Gradients are off where a checkpoint packs what it computes again."""
    return operator.phase == "recompute" or operator.name == "aten.detach"


def _arrived(recording: Recording) -> dict[int, str]:
    """The module of each gradient, by the place of its allocation."""
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
    """For each allocation, whether a block was freed since the one before it."""
    found, freed = [], False
    for event in events:
        if event.is_allocation:
            found.append(freed)
        freed = not event.is_allocation
    return found


def _operator_name(name: str) -> str:
    """`aten::mm` -> `aten.mm`, as a trace calls it."""
    return name.replace("::", ".")


@cache
def _overloads(name: str) -> tuple[Any, ...]:
    """The kinds of an operator that the dispatcher knows, without those that write into what they are given."""
    space, _, called = name.replace("::", ".").partition(".")
    packet: Any = getattr(getattr(torch.ops, space, None), called, None)
    names = [one for one in packet.overloads() if "out" not in one] if hasattr(packet, "overloads") else []
    there = torch._C._dispatch_has_kernel
    return tuple(one for one in (getattr(packet, name) for name in names) if there(one.name()))


@cache
def _is_composite(name: str) -> bool:
    """Whether an operator only calls others, also where gradients are wanted."""
    has, overloads = torch._C._dispatch_has_kernel_for_dispatch_key, _overloads(name)
    return bool(overloads) and all(has(one.name(), "CompositeImplicitAutograd") for one in overloads)


@cache
def _is_view(name: str) -> bool:
    return name == "aten.detach" or any(overload.is_view for overload in _overloads(name))


def _read_bytes(inputs: Iterable[Any]) -> int:
    return sum(_tensor_bytes(tensor) for given in inputs for tensor in (given if isinstance(given, list) else [given]))


def _tensor_bytes(metadata: Any) -> int:
    sizes = getattr(metadata, "sizes", None)
    if sizes is None:
        return 0
    count = 1
    for size in sizes:
        count *= size
    return int(count * metadata.dtype.itemsize)
