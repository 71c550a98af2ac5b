"""Reads the operator calls and allocations of a step from torch.profiler's event tree, in order of time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch

from profiler.measuring.meters.allocations import MODULE, PHASE

NODE = "autograd::engine::evaluate_function: "  # prefix of the profiler's event for one autograd node
COMPILED_CALL, COMPILED = "## Call CompiledFxGraph", "compiled code"  # torch/_inductor/output_code.py; our name for it
Sequence = tuple[int, int]  # a thread, and the number that autograd gives to an operator's node in that thread


class _Place(NamedTuple):
    """The context of an event in the profiler's tree: the events that enclose it."""

    module: str = ""
    name: str = ""  # of the innermost enclosing event that has one
    depth: int = 0  # the number of enclosing autograd nodes: two in a nested backward
    node: Sequence | None = None  # the innermost enclosing autograd node
    call: int | None = None  # the enclosing operator, by its index in `calls`
    function: Sequence | None = None  # the node that the enclosing custom autograd Function makes


class Call(NamedTuple):
    """One call of an operator, or of anything else that allocates."""

    name: str
    module: str
    is_recompute: bool
    node: Sequence | None  # of autograd, in the backward
    moved_bytes: int


class Profiled:
    """The operator calls and allocations in the profiler's event tree, in order of time."""

    def __init__(self, tree: Iterable[Any]) -> None:
        self.calls: list[Call] = []
        self.items: list[tuple[int, str, Any]] = []  # start time; "call", "allocation" or "phase"; the item
        self.operator_of: dict[Sequence, int] = {}  # by node: the last operator that made it; a Function's first
        self.home: int | None = None  # the thread of the forward
        for event in tree:
            self._walk(event, _Place())
        self.items.sort(key=lambda item: item[0])  # stable: an enclosing event stays before those in it

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
        """Record an event; return the context of its children."""
        name, sequence = event.name, (event.start_tid, event.extra_fields.sequence_number)
        if name.startswith(PHASE):
            self.home = event.start_tid
            self.items.append((event.start_time_ns, "phase", name.removeprefix(PHASE)))
        elif name.startswith(MODULE):
            return place._replace(module=name.removeprefix(MODULE), name="", call=None)
        elif name.startswith(NODE):
            return self._node(event, place)
        elif "::" in name and place.call is None:
            inside = place._replace(name=name.replace("::", "."))  # `aten.mm`, as a trace calls it
            if not _is_composite(name):
                inside = inside._replace(call=self._call(event, inside, inside.name))
                self.operator_of[sequence] = len(self.calls) - 1
            return inside
        elif place.call is None:
            inside = place._replace(name=COMPILED if name.startswith(COMPILED_CALL) else name)
            if sequence[1] < 0:
                return inside
            self.operator_of.pop(sequence, None)  # an operator that made no node had the same number
            return inside._replace(function=sequence)
        return place

    def _call(self, event: Any, place: _Place, name: str) -> int:
        fields = event.extra_fields
        is_recompute = place.depth > 0 and getattr(fields, "sequence_number", -1) >= 0
        moved = 0 if _is_view(name) else _read_bytes(getattr(fields, "inputs", ()))
        self.calls.append(Call(name, place.module, is_recompute, place.node, moved))
        self.items.append((event.start_time_ns, "call", len(self.calls) - 1))
        if place.function is not None:
            self.operator_of.setdefault(place.function, len(self.calls) - 1)
        return len(self.calls) - 1

    def _node(self, event: Any, place: _Place) -> _Place:
        """Return the context within a node, made by the forward's thread or, in a nested backward, the recompute's."""
        thread = self.home if place.depth == 0 or self.home is None else event.start_tid
        node = (thread or 0, event.extra_fields.sequence_number)
        made_by = self.operator_of.get(node)
        module = "" if made_by is None else self.calls[made_by].module
        return _Place(module, event.name.removeprefix(NODE), place.depth + 1, node)


@cache
def _overloads(name: str) -> tuple[Any, ...]:
    """Return the overloads of an operator that the dispatcher knows, without out= variants."""
    space, _, called = name.replace("::", ".").partition(".")
    packet: Any = getattr(getattr(torch.ops, space, None), called, None)
    names = [one for one in packet.overloads() if "out" not in one] if hasattr(packet, "overloads") else []
    there = torch._C._dispatch_has_kernel
    return tuple(one for one in (getattr(packet, name) for name in names) if there(one.name()))


@cache
def _is_composite(name: str) -> bool:
    """Whether an operator only calls other operators, also under autograd."""
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
