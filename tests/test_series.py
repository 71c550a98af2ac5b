"""What a series of samples says of itself: by arithmetic, and by series of which the truth is known."""

import random
from math import comb
from statistics import median

import pytest

from profiler.core.stats import Sampling, drift, interval, num_warmup, stop_reason

STEADY = (1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00)
ENDLESS = Sampling(precision_target=0.02, max_samples=10_000, max_seconds=1e9)


def noisy(count: int, noise: float, *, seed: int) -> list[float]:
    """Samples around a median of 1."""
    draw = random.Random(seed)
    return [1 + noise * draw.gauss() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 11, 101, 1000])
def test_the_interval_is_the_narrowest_pair_that_holds_the_median_often_enough(count):
    low, high = interval(range(1, count + 1))

    def outside(rank: int) -> float:  # the median is below the rank-th of the samples, or above the rank-th last
        return 2 * sum(comb(count, below) for below in range(rank)) / 2**count

    assert high == count + 1 - low
    assert outside(low) <= 0.05 < outside(low + 1)


def test_six_samples_are_the_fewest_with_an_interval():
    assert (interval(range(5)), interval((6, 2, 3, 5, 4, 1))) == (None, (1, 6))
    assert interval(range(5), level=0.9) == (0, 4)  # 2 / 2**5 is less than a tenth


@pytest.mark.parametrize(
    ("series", "number"), [((2.0, 1.6, 1.3, *STEADY), 3), (STEADY, 0), ((1.02, *[1.0] * 9), 0), ((1.03, *[1.0] * 9), 1)]
)
def test_the_first_steps_are_warm_up_as_long_as_they_are_slower_than_the_later_ones(series, number):
    assert num_warmup(series) == number


RISING, SHORT = [1 + index / 100 for index in range(30)], (1.0, 1.1, 1.2)
THIRDS = (1 + 24.5 / 100) / (1 + 4.5 / 100)  # their medians


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([RISING], THIRDS - 1),
        ([RISING[::-1]], 1 / THIRDS - 1),
        ([SHORT] * 4, None),
        ([SHORT] * 5, 0.2),  # small ones add up
        ([[level + step for step in (0.03, 0.01, 0.04, 0.02)] for level in range(1, 9)], None),  # each in its own order
    ],
)
def test_a_drift_is_told_by_its_size_unless_it_may_be_chance(rounds, expected):
    assert drift(rounds) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(("rounds", "count"), [(1, 30), (7, 3)])
def test_without_a_drift_one_is_seen_in_less_than_one_of_a_hundred(rounds, count):
    alarms = sum(
        drift([noisy(count, 0.05, seed=1000 * seed + round_) for round_ in range(rounds)]) is not None
        for seed in range(1000)
    )

    assert alarms < 10


WIDE, LATE = (1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 2.5), (9.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("series", "sampling", "least", "reason"),
    [
        ((1.0, 1.01, 0.99, 1.0, 1.0, 1.0), ENDLESS, 5, "target"),
        ((1.0, 1.03, 0.99, 1.0, 1.0, 1.0), ENDLESS, 5, None),  # its interval reaches 3 %
        ((1.0,) * 7, ENDLESS, 5, None),  # seven are not looked at
        (WIDE, Sampling(max_samples=7, max_seconds=99), 5, "samples"),
        (WIDE, Sampling(max_samples=99, max_seconds=14), 5, "seconds"),
        (WIDE[:4], Sampling(max_samples=99, max_seconds=1), 5, None),  # the least there are in any case
        (LATE, ENDLESS, 5, None),  # five steady ones have no interval: warm-up counts for the limits alone
        ((*LATE, 1.0, 1.0), ENDLESS, 5, "target"),
    ],
)
def test_sampling_ends_where_the_median_is_sure_enough_or_a_limit_is_spent(series, sampling, least, reason):
    assert stop_reason(series, sampling, least=least) == reason


def test_looking_again_and_again_costs_little_of_the_certainty():
    def sampled(seed: int) -> list[float]:
        series = noisy(2000, 0.05, seed=seed)
        end = next(count for count in range(5, 2000) if stop_reason(series[:count], ENDLESS, least=5))
        return series[:end]

    found = [sampled(seed) for seed in range(300)]

    assert sum(low <= 1 <= high for low, high in map(interval, found)) / len(found) > 0.91
    assert sum(abs(median(one) - 1) <= 0.02 for one in found) / len(found) > 0.95  # what was asked for
