"""What the simulated allocator makes of a whole step: reserved bytes, whole blocks, the building, workspaces."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch.torch_version import TorchVersion

from profiler.core.trace_data import Allocation, Building, Operator, Trace, as_asked
from profiler.predicting.prediction import memory_readings
from profiler.predicting.trace import matmul_workspaces
from profiler.predicting.trace.allocator import Settings
from profiler.predicting.trace.kernel_bytes import parts_of, request
from profiler.predicting.trace.replay import replay

MIB = 2**20


def trace(
    *allocations: tuple[int, int, int] | tuple[int, int, int, str], hidden: tuple[int, ...] = (0, 0, 0, 0)
) -> Trace:
    """A step of one operator a phase; an allocation is its bytes, its birth, its death and maybe its category."""
    return Trace(
        allocations=tuple(Allocation(*one[:3], "", "", "", *(one[3:] or ("",))) for one in allocations),
        operators=tuple(Operator("", "", "", hidden_bytes=nbytes) for nbytes in hidden),
        marks=(("zero", 0), ("forward", 1), ("backward", 2), ("optimizer", 3), ("end", 4)),
    )


def reserved(trace: Trace, **settings: bool) -> dict[str, int]:
    return replay(trace, Settings(**settings)).reserved


def by_phase(*mebibytes: int) -> dict[str, int]:
    phases = ("zero", "forward", "backward", "optimizer")
    return {phase: size * MIB for phase, size in zip(phases, mebibytes, strict=True)}


@pytest.mark.slow
def test_a_step_begins_with_what_was_there_before():
    assert reserved(trace((30 * MIB, 0, 4))) == by_phase(30, 30, 30, 30)


def test_what_dies_with_an_operator_serves_the_next_but_not_the_operator_itself():
    kept, next_one, later = (30 * MIB, 2, 3), (30 * MIB, 3, 3), (30 * MIB, 4, 4)

    assert reserved(trace(kept, later)) == by_phase(30, 30, 30, 30)  # the first step reserved it
    assert reserved(trace(kept, next_one)) == by_phase(60, 60, 60, 60)


def test_what_an_operator_hides_is_there_beside_its_outputs_and_no_longer():
    output, later = (12 * MIB, 2, 4), (40 * MIB, 3, 4)

    assert reserved(trace(output, later, hidden=(0, 40 * MIB, 0, 0))) == by_phase(52, 52, 52, 52)


def test_an_operator_has_its_outputs_before_it_takes_what_it_hides():
    # as in aten/src/ATen/native/cuda/Blas.cpp and aten/src/ATen/native/cudnn/ConvShared.cpp
    before, output = (40 * MIB, 1, 1), (30 * MIB, 2, 2)

    found = reserved(trace(before, output, hidden=(0, 40 * MIB, 0, 0)))

    assert found == by_phase(80, 80, 80, 80)  # the output cuts the 40; the other way round it would be 40 + 30


def test_what_is_gone_before_an_operator_runs_takes_nothing():
    assert reserved(trace((30 * MIB, 3, 2))) == by_phase(0, 0, 0, 0)


def test_a_phase_that_comes_twice_has_its_largest_bytes():
    one_step = Trace(
        allocations=(Allocation(30 * MIB, 2, 2, "", "", "", ""),),
        operators=(Operator("", "", ""), Operator("", "", "")),
        marks=(("forward", 0), ("forward", 1), ("backward", 2), ("end", 2)),
    )

    assert reserved(one_step) == {"forward": 30 * MIB, "backward": 30 * MIB}


def test_expandable_segments_reserve_pages_in_a_step():
    one_step = trace((25 * MIB, 2, 2), (25 * MIB, 3, 3))

    assert reserved(one_step) == by_phase(26, 26, 26, 26)
    assert reserved(one_step, expandable_segments=True) == by_phase(40, 40, 40, 40)


def test_optimizer_state_lies_where_the_first_forward_had_been():
    one_step = trace(
        (12 * MIB, 0, 4, "parameters"),
        (12 * MIB, 0, 0, "gradients"),
        (12 * MIB, 0, 4, "optimizer"),
        (40 * MIB, 2, 3, "saved"),
        (12 * MIB, 3, 4, "gradients"),
    )

    # The first step: 12, 40 saved, 12 for the gradient; then the state is cut from the 40 that are free. The second
    # finds 28 of them and has to take 40 more for what it saves; its gradient fits where the first step's was.
    assert reserved(one_step) == by_phase(64, 104, 104, 104)
    # In one range of addresses the 28 join the gradient's 12 and the 16 at the end of four pages.
    assert reserved(one_step, expandable_segments=True) == by_phase(80, 80, 80, 80)


def test_the_first_step_has_no_gradients_before_its_backward():
    saved, gradient = (20 * MIB, 2, 3), (30 * MIB, 3, 4, "gradients")

    assert reserved(trace((30 * MIB, 0, 0, "gradients"), saved, gradient)) == by_phase(50, 50, 50, 50)
    assert reserved(trace((30 * MIB, 0, 0, "inputs"), saved, gradient)) == by_phase(60, 60, 60, 60)  # the twin


def test_gradients_that_are_added_to_are_there_from_the_first_steps_end():
    one_step = trace((12 * MIB, 0, 4, "gradients"), (12 * MIB, 2, 3, "saved"))

    assert reserved(one_step) == by_phase(12, 24, 24, 24)  # where the first step saved, the second has its gradients


@pytest.mark.parametrize(
    ("asked", "block"),
    [
        ((9 * MIB, 10 * MIB), 11 * MIB),  # of a segment of 20, what is left is cut off above 1 MiB alone
        ((9 * MIB, 10 * MIB - 512), 10 * MIB - 512),  # the twin: 1 MiB + 512 are left
        ((MIB - 512, 1024, MIB - 1024), MIB - 1024),  # small blocks leave no more than they are rounded up to
    ],
)
def test_a_storage_has_all_of_a_block_that_is_not_split(asked, block):
    step = trace(*[(nbytes, 2, 2) for nbytes in asked])

    last = replay(step, Settings()).trace.allocations[-1]

    assert (last.nbytes, last.unsplit) == (block, block - asked[-1])


def test_what_an_operator_hides_has_all_of_its_block():
    step = trace((4 * MIB, 2, 2), hidden=(0, 15 * MIB + 512, 0, 0))

    found = replay(step, Settings()).trace.operators[1]

    assert (found.hidden_bytes, found.unsplit) == (16 * MIB, MIB - 512)  # a segment of its own, of 16 MiB


def test_requests_that_are_made_at_once_have_blocks_of_their_own():
    step = trace(hidden=(0, 64 * MIB + 512, 0, 0))
    both = replace(step.operators[1], requests=(64 * MIB, 512))

    small = (Allocation(512, 0, 4, "", "", "", "parameters"),)
    apart = replace(step, operators=(step.operators[0], both, *step.operators[2:]))

    assert reserved(replace(step, allocations=small))["forward"] == (2 + 66) * MIB  # one segment, up to the next 2 MiB
    assert reserved(replace(apart, allocations=small))["forward"] == (2 + 64) * MIB  # the small pool has room for 512
    assert replay(apart, Settings()).trace.operators[1].hidden_bytes == 64 * MIB + 512


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (request(1) + request(513), (512, 1024)),
        (request(1) + 7, (512, 7)),
        (7 + request(1), (7, 512)),
        (sum([request(1), request(2), request(600)]), (0, 512, 512, 1024)),
        (request(1) * 2, (512, 512)),
        (max(request(1), request(513)), (1024,)),
        (7, (7,)),
    ],
)
def test_a_sum_knows_the_requests_it_is_of(nbytes, expected):
    assert parts_of(nbytes) == tuple(part for part in expected if part)
    assert nbytes == sum(expected)


def test_the_peak_is_of_whole_blocks_and_static_bytes_are_of_storages():
    step = trace((37 * MIB, 0, 4, "parameters"), (3 * MIB, 2, 3, "saved"))

    found = memory_readings(replay(step, Settings()).trace)

    assert found["peak_bytes"] == (38 + 3) * MIB
    assert found["static_bytes"]["parameters"] == 37 * MIB
    assert as_asked(replay(step, Settings()).trace) == step


def built(*allocations: tuple[int, int, int], places: tuple[int | None, ...], num_operators: int = 3) -> Building:
    return Building(
        allocations=tuple(Allocation(nbytes, born, died, "", "", "", "") for nbytes, born, died in allocations),
        operators=(Operator("", "", ""),) * num_operators,
        places=places,
    )


def test_a_step_finds_what_building_its_model_left():
    step = trace((12 * MIB, 0, 4, "parameters"), (25 * MIB, 2, 3))
    looked_at = built((12 * MIB, 1, 3), (30 * MIB, 2, 2), places=(0, None))

    assert reserved(step) == by_phase(12 + 26, 12 + 26, 12 + 26, 12 + 26)
    assert reserved(replace(step, building=looked_at)) == by_phase(42, 42, 42, 42)  # 25 are cut from the 30


def test_what_building_made_and_the_step_does_not_hold_is_gone_before_it():
    step = trace((12 * MIB, 0, 4, "parameters"), (30 * MIB, 2, 3))
    left_over = built((30 * MIB, 1, 3), (12 * MIB, 2, 3), places=(None, 0))

    assert reserved(replace(step, building=left_over)) == by_phase(42, 42, 42, 42)


def in_phases(*names: str) -> Trace:
    """One operator in the forward, the others in the backward."""
    phases = ("forward", *["backward"] * (len(names) - 1))
    operators = tuple(Operator(name, "", phase) for name, phase in zip(names, phases, strict=True))
    return Trace(allocations=(), operators=operators, marks=(("forward", 0), ("backward", 1), ("end", len(names))))


# Whether workspaces are kept: aten/src/ATen/cuda/CublasHandlePool.cpp
@pytest.mark.parametrize(
    ("version", "asked", "kept"), [("2.14.1", None, True), ("2.15.0", "1", True), ("2.15.0", None, False)]
)
def test_workspaces_are_kept_before_2_15_or_where_it_is_asked_for(monkeypatch, version, asked, kept):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)
    if asked:
        monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", asked)

    assert matmul_workspaces.keeps_workspaces() is kept


def test_workspaces_are_kept_by_each_thread():
    found = matmul_workspaces.with_workspaces(in_phases("aten.addmm", "aten.mm", "aten.mm"), 32 * MIB)

    assert [(one.nbytes, one.born, one.died) for one in found.allocations] == [(32 * MIB, 0, 3)] * 2
    assert not matmul_workspaces.with_workspaces(in_phases("aten.add", "aten.add"), 32 * MIB).allocations


def test_before_2_15_cublaslt_keeps_a_workspace_of_its_own_in_each_thread_that_runs_it(monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0"))
    monkeypatch.delenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", raising=False)
    matrix = torch.empty(8, 8, device="meta")
    told = matmul_workspaces.telling_lt(lambda *_: 512)(torch.ops.aten.addmm.default, (matrix[0], matrix, matrix), {})
    plain = in_phases("aten.addmm", "aten.mm")
    marked = replace(plain.operators[0], hidden_bytes=int(told), requests=parts_of(told))

    found = matmul_workspaces.with_workspaces(replace(plain, operators=(marked, plain.operators[1])), 32 * MIB)

    assert [one.nbytes for one in found.allocations] == [32 * MIB, MIB, 32 * MIB]
    assert [(one.hidden_bytes, one.requests) for one in found.operators] == [(512, (512,)), (0, ())]


@pytest.mark.parametrize(("version", "asked"), [("2.15.0", None), ("2.11.0", "1")])
def test_where_the_workspaces_are_one_cublaslt_keeps_none_of_its_own(monkeypatch, version, asked):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.delenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", raising=False)
    if asked:
        monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", asked)
    matrix = torch.empty(8, 8, device="meta")

    counted = matmul_workspaces.telling_lt(lambda *_: 0)

    assert counted(torch.ops.aten.addmm.default, (matrix[0], matrix, matrix), {}) == 0
