import pytest

from profiler.core import units
from profiler.core.units import GIB, KIB, MIB


@pytest.mark.slow
def test_bytes_are_shown_in_binary_units_with_three_digits():
    texts = [units.bytes_text(count) for count in (0, 1023, KIB, 1536, 100 * MIB, 3 * GIB // 2)]

    assert texts == ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "100 MiB", "1.50 GiB"]


def test_seconds_are_shown_in_the_unit_that_reads_best():
    texts = [units.seconds_text(seconds) for seconds in (2.0, 0.0123, 4.5e-6, 5e-9)]

    assert texts == ["2.00 s", "12.3 ms", "4.50 us", "5 ns"]


def test_what_was_not_measured_is_never_a_zero():
    shown = [
        units.bytes_text(None),
        units.seconds_text(None),
        units.scaled(None, MIB),
        units.change_text(None),
        units.change_range_text(None),
        units.spread_text(None),
    ]

    assert set(shown) == {units.MISSING}


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, "B"), (10 * KIB - 1, "B"), (10 * KIB, "KiB"), (10 * MIB, "MiB"), (10 * GIB - 1, "MiB"), (10 * GIB, "GiB")],
)
def test_a_column_of_bytes_takes_the_largest_unit_of_which_there_are_ten(largest: int, unit: str):
    assert units.byte_unit([1, None, largest])[1] == unit


@pytest.mark.parametrize(("largest", "unit"), [(10.0, "s"), (9.9, "ms"), (0.01, "ms"), (0.0099, "us"), (1e-6, "ns")])
def test_a_column_of_seconds_takes_the_largest_unit_of_which_there_are_ten(largest: float, unit: str):
    assert units.second_unit([None, largest / 2, largest])[1] == unit


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0.0 %"),
        (0.51, "-49 %"),
        (1.253, "+25 %"),
        (1.034, "+3.4 %"),
        (0.9999, "0.0 %"),
        (1.0999, "+10 %"),
        (3, "+200 %"),
    ],
)
def test_a_ratio_is_shown_as_a_signed_percentage(ratio: float, text: str):
    assert units.change_text(ratio) == text
