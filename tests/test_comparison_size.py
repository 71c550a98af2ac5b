"""Comparisons of large runs: calls that grow with the rows, counted, and the order of the first strategies alone."""

from __future__ import annotations

from itertools import combinations

import pytest

from profiler.analysis import comparison
from profiler.analysis.comparison import MOST_STRATEGIES, compare_runs
from profiler.core.record import Record
from profiler.views.tables.comparison import tables
from tests.compared_runs import against, record
from tests.counted_calls import num_calls
from tests.make import MIB

SHAPES = {"one group": 10**9, "groups of 20": 20}  # strategies in each
FEW, MANY = 100, 300  # rows; both above what is ordered of one group


def rows(number: int, *, per_group: int) -> list[Record]:
    return [
        record(f"segments:k={at % per_group + 1}", batch_size=at // per_group + 1, slower=1 + at / 1000)
        for at in range(number)
    ]


def calls_a_row(number: int, shape: str) -> float:
    records = rows(number, per_group=SHAPES[shape])
    return num_calls(lambda: compare_runs([("one", records), ("two", records)])) / number


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_comparison_calls_no_more_functions_for_a_row_of_many(shape: str):
    assert calls_a_row(MANY, shape) < 1.1 * calls_a_row(FEW, shape)


@pytest.mark.slow
def test_twin_with_every_pair_of_a_group_the_calls_would_grow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "MOST_STRATEGIES", MANY)

    assert calls_a_row(140, "one group") > 1.5 * calls_a_row(70, "one group")


def test_of_more_strategies_than_are_ordered_the_first_are():
    number = MOST_STRATEGIES + 3
    first = [record(f"segments:k={at + 1}", peak=(at + 1) * MIB) for at in range(number)]
    second = [record(f"segments:k={at + 1}", peak=(at + 1) * 2 * MIB) for at in range(number)]

    found = against(first, second)

    peak, _ = found.orders
    assert MOST_STRATEGIES == 64
    assert (peak.num_same, peak.num_left_out) == (64 * 63 // 2, 3)
    assert len(found.matches) == number
    assert "without 3 more than 64" in str(tables(found))


def test_of_as_many_as_are_ordered_none_is_left_out():
    records = [record(f"segments:k={at + 1}", peak=(at + 1) * MIB) for at in range(MOST_STRATEGIES)]

    peak, _ = against(records, records).orders

    assert peak.num_same == len(list(combinations(records, 2)))
    assert not peak.num_left_out
