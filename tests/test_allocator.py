"""The simulated caching allocator: each rule by arithmetic, all of them against a plain reference.

The rules are get_allocation_size, should_split, get_free_block, try_merge_blocks, try_allocate_expandable_block and
release_cached_blocks of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch.torch_version import TorchVersion

from profiler.timeline import Allocation, Building, Operator, Trace, as_asked
from profiler.trace import step
from profiler.trace.allocator import LARGE_BASE, CachingAllocator, OutOfMemory, replay
from profiler.trace.requests import parts_of, request
from profiler.trace.settings import NUM_INTERVALS, Settings, read
from profiler.trace.summary import readings
from tests.plain_allocator import Plain

MIB = 2**20


def reserved_after(*sizes: int, **settings: bool) -> int:
    allocator = CachingAllocator(**settings)
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved


@pytest.mark.parametrize(("nbytes", "expected"), [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)])
def test_a_request_is_rounded_up_to_512_bytes(nbytes, expected):
    allocator = CachingAllocator()

    block = allocator.allocate(nbytes)

    assert block.size == allocator.allocated == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (37 * MIB, 38 * MIB),
    ],
)
def test_the_size_of_a_segment_goes_by_the_request(nbytes, expected):
    assert reserved_after(nbytes) == expected


def test_small_and_large_requests_share_no_segment():
    assert reserved_after(2 * MIB, 512) == (20 + 2) * MIB
    assert reserved_after(2 * MIB, 3 * MIB) == 20 * MIB  # the twin: large ones share


def test_a_block_of_one_stream_serves_no_other():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(MIB, stream=1), stream=1)

    allocator.allocate(MIB, stream=1)
    alone = allocator.reserved
    allocator.allocate(MIB)

    assert (alone, allocator.reserved) == (2 * MIB, 4 * MIB)


def test_the_smallest_block_that_fits_is_taken():
    allocator = CachingAllocator()
    for block in [allocator.allocate(30 * MIB), allocator.allocate(12 * MIB)]:
        allocator.free(block)

    allocator.allocate(11 * MIB)  # from the 30 MiB, 19 would be left
    allocator.allocate(30 * MIB)

    assert allocator.reserved == (30 + 12) * MIB


def test_of_equal_blocks_the_lowest_is_taken():
    allocator = CachingAllocator()
    low, high = allocator.allocate(12 * MIB), allocator.allocate(12 * MIB)
    for block in (high, low):
        allocator.free(block)

    assert allocator.allocate(12 * MIB).address < allocator.allocate(12 * MIB).address


def test_of_a_small_block_512_bytes_are_cut_off():
    assert reserved_after(MIB, MIB - 512, 512) == 2 * MIB
    assert reserved_after(MIB, MIB, 512) == 4 * MIB  # the twin: nothing is left


@pytest.mark.parametrize(("nbytes", "expected"), [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)])
def test_of_a_large_block_more_than_1_mib_is_cut_off(nbytes, expected):
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(20 * MIB))

    allocator.allocate(nbytes)

    assert allocator.allocated == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2, 1)])
@pytest.mark.parametrize("expandable_segments", [False, True])
def test_free_neighbours_are_joined(order, expandable_segments):
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    blocks = [allocator.allocate(nbytes) for nbytes in (6 * MIB, 6 * MIB, 6 * MIB, 2 * MIB)]
    for place in order:
        allocator.free(blocks[place])

    joined = allocator.allocate(6 * MIB * len(order))

    assert joined.address == blocks[0].address
    assert allocator.reserved == 20 * MIB


@pytest.mark.parametrize(
    ("nbytes", "divisions", "expected"),
    [
        (1200 * 1024, 4, 1280 * 1024),  # roundup_power2_next_division's own example: 1200 with 4 is 1280
        (1024 * 1024, 4, 1024 * 1024),
        (1281 * 1024, 4, 1536 * 1024),
        (4 * 512, 4, 4 * 512),  # not above so many granules
        (5 * 512 + 1, 4, 6 * 512),
        (1200 * 1024, 1, 1200 * 1024),
    ],
)
def test_sizes_are_rounded_up_to_divisions_of_powers_of_two(nbytes, divisions, expected):
    allocator = CachingAllocator(divisions=(divisions,) * NUM_INTERVALS)

    assert allocator.allocate(nbytes).size == expected


def test_large_blocks_that_may_not_be_split_are_left_for_large_requests():
    # get_free_block: neither for a request below the limit nor for one that is 20 MiB smaller
    allocator = CachingAllocator(max_split_bytes=40 * MIB)
    allocator.free(allocator.allocate(60 * MIB))

    assert reserved_after_more(allocator, 12 * MIB) == (60 + 12) * MIB
    assert reserved_after_more(allocator, 40 * MIB) == (60 + 12 + 40) * MIB
    assert allocator.allocate(42 * MIB).size == 60 * MIB
    assert allocator.reserved == (60 + 12 + 40) * MIB


def reserved_after_more(allocator: CachingAllocator, nbytes: int) -> int:
    allocator.allocate(nbytes)
    return allocator.reserved


def test_a_segment_as_large_as_the_limit_serves_only_what_it_was_taken_for():
    allocator = CachingAllocator(max_split_bytes=20 * MIB)

    first = allocator.allocate(4 * MIB)
    second = allocator.allocate(4 * MIB)  # what was left of it is below the limit
    for block in (first, second):
        allocator.free(block)
    allocator.allocate(4 * MIB)

    assert allocator.reserved == 40 * MIB


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", Settings()),
        ("expandable_segments:True", Settings(expandable_segments=True)),
        ("max_split_size_mb:128, expandable_segments:False", Settings(max_split_bytes=128 * MIB)),
        ("roundup_power2_divisions:8", Settings(divisions=(8,) * 16)),
        # 256 MiB is 2 ** 8: up to it every interval has the first number, from it on each its own
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", Settings(divisions=(1,) * 9 + (2, 4) + (8,) * 5)),
    ],
)
def test_settings_are_read_as_pytorch_reads_them(words, expected):
    assert read({"PYTORCH_CUDA_ALLOC_CONF": words}) == expected
    assert read({"PYTORCH_ALLOC_CONF": words}) == expected


def test_a_used_block_keeps_its_neighbours_apart():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(nbytes) for nbytes in (6 * MIB, 6 * MIB, 6 * MIB, 2 * MIB)]
    for place in (0, 2):
        allocator.free(blocks[place])

    allocator.allocate(12 * MIB)

    assert allocator.reserved == (20 + 12) * MIB


def test_segments_are_never_joined():
    allocator = CachingAllocator()
    for block in [allocator.allocate(10 * MIB), allocator.allocate(10 * MIB)]:
        allocator.free(block)

    allocator.allocate(20 * MIB)

    assert allocator.reserved == (10 + 10 + 20) * MIB


def test_what_is_free_stays_reserved_until_it_is_released():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    before = allocator.reserved

    allocator.release()

    assert (before, allocator.reserved, allocator.allocated) == (30 * MIB, 0, 0)
    assert (allocator.peak_reserved, allocator.peak_allocated) == (30 * MIB, 30 * MIB)


def test_a_segment_in_use_is_not_released():
    allocator = CachingAllocator()
    allocator.allocate(6 * MIB)

    allocator.release()

    assert allocator.reserved == 20 * MIB


@pytest.mark.parametrize(("capacity", "expected"), [(None, 50 * MIB), (50 * MIB, 50 * MIB), (49 * MIB, 30 * MIB)])
def test_cached_segments_are_returned_where_the_capacity_is_short(capacity, expected):
    allocator = CachingAllocator(capacity=capacity)
    allocator.free(allocator.allocate(20 * MIB))

    allocator.allocate(30 * MIB)

    assert allocator.reserved == expected


def test_running_out_of_memory_is_told_and_changes_no_block():
    allocator = CachingAllocator(capacity=30 * MIB)
    held = allocator.allocate(20 * MIB)

    with pytest.raises(OutOfMemory) as raised:
        allocator.allocate(20 * MIB)

    assert (raised.value.nbytes, raised.value.reserved, raised.value.capacity) == (20 * MIB, 20 * MIB, 30 * MIB)
    allocator.free(held)
    assert allocator.allocate(20 * MIB).size == 20 * MIB


def test_a_block_is_freed_once():
    allocator = CachingAllocator()
    block = allocator.allocate(512)
    allocator.free(block)

    with pytest.raises(AssertionError, match="free already"):
        allocator.free(block)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((512,), 2 * MIB),
        ((MIB, MIB, 512), 4 * MIB),
        ((3 * MIB,), 20 * MIB),
        ((25 * MIB,), 40 * MIB),
        ((12 * MIB, 12 * MIB, 16 * MIB), 40 * MIB),  # the second lies across both pages
        ((12 * MIB, 12 * MIB, 16 * MIB + 1), 60 * MIB),
    ],
)
def test_an_expandable_segment_grows_by_pages(sizes, expected):
    assert reserved_after(*sizes, expandable_segments=True) == expected


def test_of_an_expandable_block_512_bytes_are_cut_off():
    allocator = CachingAllocator(expandable_segments=True)
    allocator.free(allocator.allocate(20 * MIB))

    allocator.allocate(20 * MIB - 512)

    assert allocator.allocated == 20 * MIB - 512  # otherwise all of the page, as without expandable segments


def test_the_end_of_an_expandable_segment_is_used_last():
    allocator = CachingAllocator(expandable_segments=True)
    hole, _ = allocator.allocate(5 * MIB), allocator.allocate(12 * MIB)
    allocator.free(hole)  # 5 MiB are free here, and 3 at the end

    block = allocator.allocate(2 * MIB)

    assert block.address == hole.address


def test_an_expandable_segment_returns_the_pages_that_are_wholly_free():
    allocator = CachingAllocator(expandable_segments=True)
    first, _ = allocator.allocate(70 * MIB), allocator.allocate(8 * MIB)
    allocator.free(first)

    allocator.release()

    assert allocator.reserved == 20 * MIB  # of four pages the fourth is in use
    assert allocator.allocate(60 * MIB).address == first.address  # the hole is mapped again
    assert allocator.reserved == 80 * MIB


def test_a_hole_is_mapped_with_what_is_free_before_it():
    allocator = CachingAllocator(expandable_segments=True)
    _, middle, last = (allocator.allocate(nbytes * MIB) for nbytes in (10, 30, 8))
    allocator.free(middle)
    allocator.release()  # the page from 20 to 40 MiB, with 10 MiB free before it and 12 at the end
    holed = allocator.reserved

    filling = allocator.allocate(25 * MIB)

    assert (holed, allocator.reserved) == (40 * MIB, 60 * MIB)
    assert filling.address == middle.address
    for block in (filling, last):
        allocator.free(block)
    assert allocator.allocate(50 * MIB).address == filling.address  # nothing of the hole is left between


def test_a_hole_that_is_too_small_is_passed_over():
    allocator = CachingAllocator(expandable_segments=True)
    _, middle, last = (allocator.allocate(nbytes * MIB) for nbytes in (10, 30, 8))
    allocator.free(middle)
    allocator.release()

    block = allocator.allocate(40 * MIB)

    assert block.address == last.address + last.size
    assert allocator.reserved == (40 + 40) * MIB


def test_of_blocks_that_can_grow_the_one_that_can_grow_least_is_used_first():
    allocator = CachingAllocator(expandable_segments=True)
    plain, _, holed, _ = (allocator.allocate(nbytes * MIB) for nbytes in (5, 11, 24, 17))
    for block in (plain, holed):
        allocator.free(block)
    allocator.release()  # 5 MiB that cannot grow, 4 before a hole of 20, 3 at the end

    first, second = allocator.allocate(3 * MIB), allocator.allocate(3 * MIB)

    assert (first.address, second.address) == (plain.address, holed.address)


edges = [1, 512, 513, MIB - 512, MIB, MIB + 1, 9 * MIB, 10 * MIB - 1, 10 * MIB, 19 * MIB, 20 * MIB, 40 * MIB]
sizes = st.sampled_from(edges) | st.integers(1, MIB) | st.integers(MIB, 12 * MIB) | st.integers(10 * MIB, 50 * MIB)
verbs = st.sampled_from(["allocate"] * 5 + ["free"] * 4 + ["release"])
works = st.lists(st.tuples(verbs, sizes), min_size=10, max_size=60)


class Pair:
    """The allocator and the reference, at the same work."""

    def __init__(self, expandable: bool, capacity: int | None) -> None:
        self.quick = CachingAllocator(expandable_segments=expandable, capacity=capacity)
        self.plain = Plain(expandable=expandable, capacity=capacity)
        self.live = []

    def do(self, verb: str, number: int) -> None:
        if verb == "allocate":
            self.allocate(number)
        elif verb == "free" and self.live:
            block, small, piece = self.live.pop(number % len(self.live))
            self.quick.free(block)
            self.plain.free(small, piece)
        elif verb == "release":
            self.quick.release()
            self.plain.release()

    def allocate(self, nbytes: int) -> None:
        piece = self.plain.allocate(nbytes)
        if piece is None:
            with pytest.raises(OutOfMemory):
                self.quick.allocate(nbytes)
        else:
            self.live.append((self.quick.allocate(nbytes), nbytes <= MIB, piece))


@settings(max_examples=200, deadline=None)
@given(work=works, expandable=st.booleans(), capacity=st.none() | st.integers(20, 120).map(lambda n: n * MIB))
def test_every_block_lies_where_the_reference_puts_it(work, expandable, capacity):
    pair = Pair(expandable, capacity)

    for verb, number in work:
        pair.do(verb, number)

        found = [(block.address % LARGE_BASE, block.size) for block, _, _ in pair.live]
        assert found == [(address, nbytes) for _, _, (address, nbytes, _) in pair.live]
        assert pair.quick.reserved == pair.plain.reserved


@settings(max_examples=100, deadline=None)
@given(work=works, expandable=st.booleans())
def test_blocks_never_overlap_and_add_up_to_what_is_allocated(work, expandable):
    pair = Pair(expandable, None)

    for verb, number in work:
        pair.do(verb, number)

        blocks = sorted((block.address, block.size) for block, _, _ in pair.live)
        ends = [address + nbytes for address, nbytes in blocks]
        assert all(end <= begin for end, (begin, _) in zip(ends, blocks[1:], strict=False))
        assert pair.quick.allocated == sum(nbytes for _, nbytes in blocks)
        assert pair.quick.allocated <= pair.quick.reserved <= pair.quick.peak_reserved


@given(work=works, expandable=st.booleans())
def test_when_all_is_freed_every_segment_is_one_block_again(work, expandable):
    pair = Pair(expandable, None)
    for verb, number in work:
        pair.do(verb, number)
    for block, _, _ in pair.live:
        pair.quick.free(block)

    pair.quick.release()

    assert (pair.quick.allocated, pair.quick.reserved) == (0, 0)  # a segment in pieces would have stayed


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

    last = replay(step).trace.allocations[-1]

    assert (last.nbytes, last.unsplit) == (block, block - asked[-1])


def test_what_an_operator_hides_has_all_of_its_block():
    step = trace((4 * MIB, 2, 2), hidden=(0, 15 * MIB + 512, 0, 0))

    found = replay(step).trace.operators[1]

    assert (found.hidden_bytes, found.unsplit) == (16 * MIB, MIB - 512)  # a segment of its own, of 16 MiB


def test_requests_that_are_made_at_once_have_blocks_of_their_own():
    step = trace(hidden=(0, 64 * MIB + 512, 0, 0))
    both = replace(step.operators[1], requests=(64 * MIB, 512))

    small = (Allocation(512, 0, 4, "", "", "", "parameters"),)
    apart = replace(step, operators=(step.operators[0], both, *step.operators[2:]))

    assert reserved(replace(step, allocations=small))["forward"] == (2 + 66) * MIB  # one segment, up to the next 2 MiB
    assert reserved(replace(apart, allocations=small))["forward"] == (2 + 64) * MIB  # the small pool has room for 512
    assert replay(apart).trace.operators[1].hidden_bytes == 64 * MIB + 512


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

    found = readings(replay(step).trace)

    assert found["peak_bytes"] == (38 + 3) * MIB
    assert found["static_bytes"]["parameters"] == 37 * MIB
    assert as_asked(replay(step).trace) == step


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

    assert step.keeps_workspaces() is kept


def test_workspaces_are_kept_by_each_thread():
    found = step._with_workspaces(in_phases("aten.addmm", "aten.mm", "aten.mm"), 32 * MIB)

    assert [(one.nbytes, one.born, one.died) for one in found.allocations] == [(32 * MIB, 0, 3)] * 2
    assert not step._with_workspaces(in_phases("aten.add", "aten.add"), 32 * MIB).allocations
