"""The largest number that fits, against trying every one."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.advice import MOST_TRIED, largest_that_fits


@given(
    rises=st.lists(st.integers(0, 1000), min_size=1, max_size=300),
    limit=st.integers(0, 20_000),
    start=st.integers(1, 400),
    fails=st.integers(1, 400),
)
def test_it_is_what_a_scan_over_all_numbers_finds(rises, limit, start, fails):
    values = list(accumulate(rises))[: fails - 1]

    found = largest_that_fits(
        lambda number: values[number - 1] if number <= len(values) else None, limit=limit, start=start
    )

    assert found == max((number for number, value in enumerate(values, 1) if value <= limit), default=0)


@given(
    fixed=st.integers(0, 10**9),
    each=st.integers(1, 10**8),
    answer=st.integers(0, 1000),
    over=st.floats(0, 0.99),
    start=st.integers(1, 64),
)
def test_bytes_that_grow_by_the_same_with_every_sample_take_few_steps(fixed, each, answer, over, start):
    limit = fixed + each * answer + int(over * each)
    asked: list[int] = []

    found = largest_that_fits(lambda number: asked.append(number) or fixed + each * number, limit=limit, start=start)

    assert found == answer
    assert len(asked) == len(set(asked)) <= 8
    near = largest_that_fits(lambda number: fixed + each * number, limit=limit, start=start, within=0.1)
    assert near <= answer <= 1.1 * near + (near == answer)


@pytest.mark.parametrize(
    ("needed", "answer"),
    [
        (lambda number: 0 if number < 1000 else 10**12, 999),  # a line through its two ends crawls from below
        (lambda number: number if number < 1000 else None, 999),  # and from above
        (lambda number: min(number, 500 + number // 64) if number <= 600 else None, 600),  # a line leads too far
        (lambda number: int(number**0.5), MOST_TRIED),
    ],
)
def test_what_jumps_or_crawls_takes_no_more_than_some_bisections(needed, answer):
    asked: list[int] = []

    assert largest_that_fits(lambda number: asked.append(number) or needed(number), limit=10**6, start=64) == answer
    assert len(asked) <= 50  # a scan would take up to sixteen million


def test_what_needs_all_memory_from_somewhere_on_is_not_looked_for_one_by_one():
    asked: list[int] = []

    def needed(number):
        asked.append(number)
        return min(600 + 5 * number, 14_400) if number <= 3023 else None  # PyTorch gives freed memory back in between

    found = largest_that_fits(needed, limit=14_500, start=8, within=0.01)

    assert found <= 3023 <= 1.01 * found
    assert len(asked) <= 16
