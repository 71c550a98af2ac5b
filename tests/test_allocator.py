"""The simulated caching allocator: each rule by arithmetic, all of them against a plain reference.

The rules are get_allocation_size, should_split, get_free_block, try_merge_blocks and try_allocate_expandable_block of
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.predicting.trace.allocator import (
    LARGE_BASE,
    NUM_INTERVALS,
    CachingAllocator,
    Settings,
    read_settings,
)
from tests.plain_allocator import Plain

MIB = 2**20


def allocating(**settings: Any) -> CachingAllocator:
    return CachingAllocator(Settings(**settings))


def reserved_after(*sizes: int, **settings: bool) -> int:
    allocator = allocating(**settings)
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved


@pytest.mark.parametrize(("nbytes", "expected"), [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)])
def test_a_request_is_rounded_up_to_512_bytes(nbytes, expected):
    allocator = allocating()

    block = allocator.allocate(nbytes)

    assert block.size == expected


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
    allocator = allocating()
    allocator.free(allocator.allocate(MIB, stream=1), stream=1)

    allocator.allocate(MIB, stream=1)
    alone = allocator.reserved
    allocator.allocate(MIB)

    assert (alone, allocator.reserved) == (2 * MIB, 4 * MIB)


def test_the_smallest_block_that_fits_is_taken():
    allocator = allocating()
    for block in [allocator.allocate(30 * MIB), allocator.allocate(12 * MIB)]:
        allocator.free(block)

    allocator.allocate(11 * MIB)  # from the 30 MiB, 19 would be left
    allocator.allocate(30 * MIB)

    assert allocator.reserved == (30 + 12) * MIB


def test_of_equal_blocks_the_lowest_is_taken():
    allocator = allocating()
    low, high = allocator.allocate(12 * MIB), allocator.allocate(12 * MIB)
    for block in (high, low):
        allocator.free(block)

    assert allocator.allocate(12 * MIB).address < allocator.allocate(12 * MIB).address


def test_of_a_small_block_512_bytes_are_cut_off():
    assert reserved_after(MIB, MIB - 512, 512) == 2 * MIB
    assert reserved_after(MIB, MIB, 512) == 4 * MIB  # the twin: nothing is left


@pytest.mark.parametrize(("nbytes", "expected"), [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)])
def test_of_a_large_block_more_than_1_mib_is_cut_off(nbytes, expected):
    allocator = allocating()
    allocator.free(allocator.allocate(20 * MIB))

    block = allocator.allocate(nbytes)

    assert block.size == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2, 1)])
@pytest.mark.parametrize("expandable_segments", [False, True])
def test_free_neighbours_are_joined(order, expandable_segments):
    allocator = allocating(expandable_segments=expandable_segments)
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
    allocator = allocating(divisions=(divisions,) * NUM_INTERVALS)

    assert allocator.allocate(nbytes).size == expected


def test_large_blocks_that_may_not_be_split_are_left_for_large_requests():
    # get_free_block: neither for a request below the limit nor for one that is 20 MiB smaller
    allocator = allocating(max_split_bytes=40 * MIB)
    allocator.free(allocator.allocate(60 * MIB))

    assert reserved_after_more(allocator, 12 * MIB) == (60 + 12) * MIB
    assert reserved_after_more(allocator, 40 * MIB) == (60 + 12 + 40) * MIB
    assert allocator.allocate(42 * MIB).size == 60 * MIB
    assert allocator.reserved == (60 + 12 + 40) * MIB


def reserved_after_more(allocator: CachingAllocator, nbytes: int) -> int:
    allocator.allocate(nbytes)
    return allocator.reserved


def test_a_segment_as_large_as_the_limit_serves_only_what_it_was_taken_for():
    allocator = allocating(max_split_bytes=20 * MIB)

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
    assert read_settings({"PYTORCH_CUDA_ALLOC_CONF": words}) == expected
    assert read_settings({"PYTORCH_ALLOC_CONF": words}) == expected


def test_a_used_block_keeps_its_neighbours_apart():
    allocator = allocating()
    blocks = [allocator.allocate(nbytes) for nbytes in (6 * MIB, 6 * MIB, 6 * MIB, 2 * MIB)]
    for place in (0, 2):
        allocator.free(blocks[place])

    allocator.allocate(12 * MIB)

    assert allocator.reserved == (20 + 12) * MIB


def test_segments_are_never_joined():
    allocator = allocating()
    for block in [allocator.allocate(10 * MIB), allocator.allocate(10 * MIB)]:
        allocator.free(block)

    allocator.allocate(20 * MIB)

    assert allocator.reserved == (10 + 10 + 20) * MIB


def test_a_block_is_freed_once():
    allocator = allocating()
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
    allocator = allocating(expandable_segments=True)
    allocator.free(allocator.allocate(20 * MIB))

    block = allocator.allocate(20 * MIB - 512)

    assert block.size == 20 * MIB - 512  # otherwise all of the page, as without expandable segments


def test_the_end_of_an_expandable_segment_is_used_last():
    allocator = allocating(expandable_segments=True)
    hole, _ = allocator.allocate(5 * MIB), allocator.allocate(12 * MIB)
    allocator.free(hole)  # 5 MiB are free here, and 3 at the end

    block = allocator.allocate(2 * MIB)

    assert block.address == hole.address


edges = [1, 512, 513, MIB - 512, MIB, MIB + 1, 9 * MIB, 10 * MIB - 1, 10 * MIB, 19 * MIB, 20 * MIB, 40 * MIB]
sizes = st.sampled_from(edges) | st.integers(1, MIB) | st.integers(MIB, 12 * MIB) | st.integers(10 * MIB, 50 * MIB)
verbs = st.sampled_from(["allocate"] * 5 + ["free"] * 4)
works = st.lists(st.tuples(verbs, sizes), min_size=10, max_size=60)


class Pair:
    """The allocator and the reference, at the same work."""

    def __init__(self, expandable: bool) -> None:
        self.quick = allocating(expandable_segments=expandable)
        self.plain = Plain(expandable=expandable)
        self.live = []

    def do(self, verb: str, number: int) -> None:
        if verb == "allocate":
            self.live.append((self.quick.allocate(number), number <= MIB, self.plain.allocate(number)))
        elif self.live:
            self.free(number % len(self.live))

    def free(self, place: int) -> None:
        block, small, piece = self.live.pop(place)
        self.quick.free(block)
        self.plain.free(small, piece)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(work=works, expandable=st.booleans())
def test_every_block_lies_where_the_reference_puts_it(work, expandable):
    pair = Pair(expandable)

    for verb, number in work:
        pair.do(verb, number)

        placed = [(block.address % LARGE_BASE, block.size) for block, _, _ in pair.live]
        assert placed == [(address, nbytes) for _, _, (address, nbytes, _) in pair.live]
        assert pair.quick.reserved == pair.plain.reserved


@settings(max_examples=100, deadline=None)
@given(work=works, expandable=st.booleans())
def test_blocks_never_overlap_and_fit_into_what_is_reserved(work, expandable):
    pair = Pair(expandable)

    for verb, number in work:
        pair.do(verb, number)

        blocks = sorted((block.address, block.size) for block, _, _ in pair.live)
        ends = [address + nbytes for address, nbytes in blocks]
        assert all(end <= begin for end, (begin, _) in zip(ends, blocks[1:], strict=False))
        assert sum(nbytes for _, nbytes in blocks) <= pair.quick.reserved


@given(work=works, expandable=st.booleans())
def test_when_all_is_freed_every_segment_is_one_block_again(work, expandable):
    pair = Pair(expandable)
    for verb, number in work:
        pair.do(verb, number)
    while pair.live:
        pair.free(0)
    reserved = pair.quick.reserved

    for nbytes in sorted(pair.plain.free_bytes(small=False)):
        pair.quick.allocate(nbytes)
    for _ in range(sum(pair.plain.free_bytes(small=True)) // MIB):  # the largest that the small pool serves
        pair.quick.allocate(MIB)

    assert pair.quick.reserved == reserved  # a segment in pieces would not hold it
