"""The largest number that fits, against trying every one."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.advice import MOST_TRIED, largest_that_fits


class Counted:
    """A function that counts how often it is asked."""

    def __init__(self, needed: Callable[[int], int | None]) -> None:
        self._needed = needed
        self.asked: list[int] = []

    def __call__(self, number: int) -> int | None:
        self.asked.append(number)
        return self._needed(number)


def by_scan(needed: Callable[[int], int | None], limit: int, end: int) -> int:
    """The last number before `end` that fits."""
    fitting = [number for number in range(1, end) if (found := needed(number)) is not None and found <= limit]
    return max(fitting, default=0)


@pytest.mark.slow
@given(
    rises=st.lists(st.integers(0, 1000), min_size=1, max_size=300),
    limit=st.integers(0, 20_000),
    start=st.integers(1, 400),
    fails=st.integers(1, 400),
)
def test_it_is_what_a_scan_over_all_numbers_finds(rises, limit, start, fails):
    values = list(accumulate(rises))

    def needed(number: int) -> int | None:
        return values[number - 1] if number <= len(values) and number < fails else None

    assert largest_that_fits(needed, limit=limit, start=start) == by_scan(needed, limit, len(values) + 1)


@given(
    fixed=st.integers(0, 10**9),
    each=st.integers(1, 10**8),
    answer=st.integers(0, 1000),
    over=st.floats(0, 0.99),
    start=st.integers(1, 64),
)
def test_bytes_that_grow_by_the_same_with_every_sample_take_few_steps(fixed, each, answer, over, start):
    limit = fixed + each * answer + int(over * each)
    needed = Counted(lambda number: fixed + each * number)

    found = largest_that_fits(needed, limit=limit, start=start)

    assert found == answer
    assert len(needed.asked) <= 8
    assert len(set(needed.asked)) == len(needed.asked)


@pytest.mark.parametrize(
    ("needed", "answer"),
    [
        (lambda number: 0 if number < 1000 else 10**12, 999),  # a line through its two ends crawls from below
        (lambda number: number if number < 1000 else None, 999),  # and from above
        (lambda number: number**3, 100),
        (lambda number: 2**20 * (number // 700), 699),
        (lambda number: int(number**0.5), MOST_TRIED),
    ],
)
def test_bytes_that_grow_in_other_ways_take_no_more_than_some_bisections(needed, answer):
    counted = Counted(needed)

    found = largest_that_fits(counted, limit=10**6, start=64)

    assert found == answer
    assert len(counted.asked) <= 50  # a scan would take up to sixteen million


def test_a_line_that_meets_the_limit_beyond_what_does_not_fit_is_not_followed():
    needed = Counted(lambda number: min(number, 500 + number // 64) if number <= 600 else None)

    assert largest_that_fits(needed, limit=600, start=224) == 600
    assert needed.asked[:3] == [224, 600, 720]
    assert len(needed.asked) <= 3 + 7  # 2**7 is more than the 120 numbers between the last two


@pytest.mark.parametrize(("needed", "found"), [(5, 0), (4, MOST_TRIED), (None, 0)])
def test_what_does_not_grow_fits_never_or_always(needed, found):
    assert largest_that_fits(lambda number: needed, limit=4, start=64) == found
