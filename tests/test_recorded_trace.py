"""A recording made by hand -> its trace: entries, lives, categories and lines by arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from profiler.core.allocator_history import Block, Event
from profiler.core.trace_data import live
from profiler.measuring.meters.allocations import MODULE, PHASE, Recording
from profiler.measuring.meters.profiled_calls import NODE
from profiler.measuring.meters.recorded_trace import trace

A, B, C = 0x1000, 0x2000, 0x3000  # addresses
BEFORE = Block(address=0x9000, nbytes=1024, requested=600, line="own.py:1")


class Tree:
    """Events of a profiler's tree, each a microsecond after the one before, with the allocator's history."""

    def __init__(self) -> None:
        self.now, self.live = 0, BEFORE.nbytes
        self.roots: list[Any] = []
        self.history: list[Event] = []
        self.marks: list[tuple[str, int]] = []

    def phase(self, name: str) -> None:
        self.marks.append((name, len(self.history)))
        self.roots.append(self.run(PHASE + name))

    def run(self, name: str, *children: Any, sequence: int = -1) -> Any:
        fields = SimpleNamespace(sequence_number=sequence, inputs=())
        return self._event("_EventType.TorchOp", name, fields, children)

    def give(self, address: int, nbytes: int, line: str = "") -> Any:
        self.live += nbytes
        self.history.append(Event(True, address, nbytes, line, self.now // 1000))
        device = SimpleNamespace(type="cuda")
        fields = SimpleNamespace(ptr=address, alloc_size=nbytes, total_allocated=self.live, device=device)
        return self._event("_EventType.Allocation", "[memory]", fields, ())

    def free(self, address: int, nbytes: int) -> None:
        self.live -= nbytes
        self.history.append(Event(False, address, nbytes, "", self.now // 1000))

    def _event(self, tag: str, name: str, fields: Any, children: Any) -> Any:
        self.now += 1000
        began = min([self.now, *(child.start_time_ns - 1 for child in children)])
        return SimpleNamespace(
            tag=tag, name=name, extra_fields=fields, children=children, start_time_ns=began, start_tid=1
        )

    def recording(self, **more: Any) -> Recording:
        fields: dict[str, Any] = {
            "before": (BEFORE,),
            "events": tuple(self.history),
            "tree": tuple(self.roots),
            "marks": tuple(self.marks),
            "held_before": {BEFORE.address: ("parameters", "layer")},
            "held_after": {},
            "gradients": (),
            "workspaces": frozenset(),
            "peak_bytes": 0,
        }
        return Recording(**{**fields, **more})


def step() -> Tree:
    """A forward that frees a temporary before it asks again, and a backward that makes one gradient."""
    tree = Tree()
    tree.phase("zero")
    tree.phase("forward")
    first = tree.give(A, 512, "own.py:5")
    tree.free(A, 512)
    second = tree.give(B, 1536, "own.py:5")
    tree.roots.append(tree.run(MODULE + "layer", tree.run("aten::mm", first, second, sequence=7)))
    tree.phase("backward")
    tree.roots.append(tree.run(f"{NODE}MmBackward0", tree.run("aten::mm", tree.give(C, 2048)), sequence=7))
    tree.free(B, 1536)
    tree.phase("optimizer")
    tree.phase("end")
    return tree


@pytest.mark.slow
def test_an_operator_that_frees_before_it_asks_again_is_two_entries():
    found = trace(step().recording())

    assert [(one.name, one.module, one.phase) for one in found.operators] == [
        ("aten.mm", "layer", "forward"),
        ("aten.mm", "layer", "forward"),
        ("aten.mm", "layer", "backward"),
    ]
    assert live(found) == [1024, 1024 + 512, 1024 + 1536, 1024 + 1536 + 2048]


def test_what_lives_on_into_the_backward_is_saved_and_what_arrives_is_a_gradient():
    found = trace(step().recording(gradients=((C, 4, "layer"),)))

    assert [(one.category, one.nbytes, one.unsplit) for one in found.allocations] == [
        ("parameters", 1024, 0),
        ("temporaries", 512, 0),
        ("saved", 1536, 0),
        ("gradients", 2048, 0),
    ]


def test_a_backward_has_the_line_of_its_forward():
    assert [one.line for one in trace(step().recording()).allocations] == ["own.py:1", *3 * ["own.py:5"]]


def test_the_backward_of_a_function_of_the_users_is_of_the_module_that_called_it():
    tree = Tree()
    tree.phase("forward")
    numbers = tree.run(
        "aten::arange", tree.give(A, 512), sequence=7
    )  # makes no node, which the next one's number tells
    own = tree.run("Square", tree.run("aten::mul", tree.give(B, 512, "own.py:7")), sequence=7)
    tree.roots += [tree.run(MODULE + "early", numbers), tree.run(MODULE + "layer", own)]
    tree.phase("backward")
    tree.roots.append(tree.run(f"{NODE}SquareBackward", tree.run("aten::mul", tree.give(C, 2048)), sequence=7))
    tree.phase("end")

    found = trace(tree.recording())

    assert [(one.name, one.module) for one in found.operators if one.phase == "backward"] == [("aten.mul", "layer")]
    assert found.allocations[-1].line == "own.py:7"


def test_blocks_without_a_name_are_inputs_unless_cublas_let_go_of_them():
    recordings = [step().recording(held_before={}, workspaces=kept) for kept in ((), {BEFORE.address})]

    assert [trace(one).allocations[0].category for one in recordings] == ["inputs", "workspaces"]


def test_a_history_and_a_profile_that_disagree_are_no_trace():
    tree = step()
    other = [event._replace(address=B + 512) if event.address == B else event for event in tree.history]

    with pytest.raises(AssertionError, match="one sequence"):
        trace(tree.recording(events=tuple(other)))


def test_blocks_that_do_not_add_up_to_the_allocators_own_count_are_no_trace():
    with pytest.raises(AssertionError, match="add up"):
        trace(step().recording(before=()))


def test_what_a_product_works_in_is_not_said_to_grow_with_the_batch():
    tree = Tree()
    tree.phase("zero")
    tree.phase("forward")
    result, workspace = tree.give(A, 1024), tree.give(B, 8192)
    tree.free(B, 8192)
    tree.roots.append(tree.run(MODULE + "layer", tree.run("aten::mm", result, workspace, sequence=7)))
    tree.phase("backward")
    tree.roots.append(tree.run(f"{NODE}Backward0", tree.run("aten::mul", tree.give(C, 2048)), sequence=7))
    tree.free(C, 2048)
    tree.phase("optimizer")
    tree.phase("end")

    powers = {life.nbytes: life.batch_power for life in trace(tree.recording()).allocations if life.born}

    assert powers == {1024: 1, 8192: 0, 2048: 1}
