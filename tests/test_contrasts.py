"""Two samples of seconds against each other: how often the verdict and the interval are right."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from scipy import stats

from profiler.analysis import time_ratio
from profiler.analysis.time_ratio import TimeRatio, estimated, of_samples, sample, units, verdict

SHAPES = ((1, 5), (1, 10), (1, 30), (3, 5), (3, 10), (5, 5), (10, 5))  # rounds, and samples in each
TIMES = 2000
Draw = Callable[[random.Random], float]


def sampled(*sides: list[list[float]]) -> TimeRatio:
    return of_samples(*(sample(tuple(map(tuple, side))) for side in sides))


def normal(noise: float) -> Draw:
    return lambda source: source.gauss(1.0, noise)


def skewed(source: random.Random) -> float:
    """As steps are: a shortest time, and now and then a longer one."""
    return 1.0 + source.expovariate(50.0)


def rounds(source: random.Random, draw: Draw, shape: tuple[int, int], *, slower: float = 1.0) -> list[list[float]]:
    num_rounds, samples = shape
    return [[slower * draw(source) for _ in range(samples)] for _ in range(num_rounds)]


def covered(shape: tuple[int, int], draw: Draw, *, ratio: float = 1.07) -> float:
    """How often the interval holds the true ratio."""
    source = random.Random(7)
    found = (sampled(rounds(source, draw, shape), rounds(source, draw, shape, slower=ratio)) for _ in range(TIMES))
    return sum(one.low <= ratio <= one.high for one in found) / TIMES


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_the_same_run_twice_is_no_different_in_95_of_100(shape: tuple[int, int], noise: float):
    source = random.Random(0)
    draw = normal(noise)

    found = [verdict(sampled(rounds(source, draw, shape), rounds(source, draw, shape))) for _ in range(200)]

    assert sum(one not in ("faster", "slower") for one in found) >= 190


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_slow_down_by_a_twentieth_is_found_at_a_hundredth_of_noise(shape: tuple[int, int]):
    source = random.Random(1)
    draw = normal(0.01)

    found = [sampled(rounds(source, draw, shape), rounds(source, draw, shape, slower=1.05)) for _ in range(400)]

    assert sum(verdict(one) == "slower" for one in found) >= 396


def test_a_speed_up_is_better():
    source = random.Random(2)

    found = sampled(rounds(source, normal(0.01), (3, 5)), rounds(source, normal(0.01), (3, 5), slower=0.9))

    assert verdict(found) == "faster"
    assert found.low < found.ratio < found.high < 1


def test_enough_samples_of_the_same_are_called_the_same():
    source = random.Random(3)

    found = [verdict(sampled(*(rounds(source, normal(0.01), (5, 10)) for _ in "ab"))) for _ in range(200)]

    assert found.count("same") >= 180


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != (1, 5)], ids=str)
def test_the_interval_holds_the_true_ratio_in_95_of_100(shape: tuple[int, int]):
    sampling = 3 * (0.95 * 0.05 / TIMES) ** 0.5

    assert 0.95 - sampling <= covered(shape, normal(0.01)) <= 0.96 + sampling


@pytest.mark.parametrize("shape", [(1, 30), (3, 5)], ids=str)
def test_the_interval_holds_it_for_skewed_steps_too(shape: tuple[int, int]):
    assert 0.94 <= covered(shape, skewed) <= 0.975


def test_an_interval_that_is_too_narrow_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time_ratio, "t_quantile", lambda freedom: 1.96)

    assert covered((3, 5), normal(0.01)) < 0.93


def test_predicted_seconds_are_the_same_within_a_hundredth():
    assert verdict(estimated(1.0, 1.009)) == "same"
    assert verdict(estimated(1.0, 1.011)) == "slower"
    assert verdict(estimated(1.0, 0.9)) == "faster"


def test_rounds_are_the_units_and_a_single_round_is_cut_into_stretches():
    assert units([[1.0, 9.0, 2.0], [3.0], []]) == [2.0, 3.0]
    assert units([[4.0, 1.0, 3.0]]) == [4.0, 1.0, 3.0]
    assert units([[float(step) for step in range(20)]]) == [step + 0.5 for step in range(0, 20, 2)]


def test_the_drift_of_a_process_is_not_taken_for_precision():
    """Two rounds far apart: many samples within each must not make the interval narrow."""
    source = random.Random(4)
    apart = [[level * source.gauss(1.0, 0.001) for _ in range(100)] for level in (1.0, 1.1, 1.2)]

    found = sampled(apart, apart)

    assert found.low < 0.9
    assert found.high > 1.1


def test_the_quantiles_are_those_of_scipy():
    for tenths in range(10, 400):
        true = stats.t.ppf(0.975, tenths / 10)
        within = 2e-7 if tenths in range(10, 100, 10) else 0.04 if tenths < 20 else 0.01 if tenths < 100 else 2e-4
        assert time_ratio.t_quantile(tenths / 10) == pytest.approx(true, rel=within)


CONSTANT = {"rounds": [[0.2] * 5] * 3, "one round": [[0.2] * 5], "inexact": [[0.1 + 0.2] * 7]}


@pytest.mark.parametrize("samples", CONSTANT.values(), ids=CONSTANT)
def test_constant_samples_divide_nothing_by_zero(samples: list[list[float]]):
    found = sampled(samples, samples)

    assert (found.ratio, verdict(found)) == (1.0, "same")
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.0))


def test_constant_samples_that_differ_are_slower():
    found = sampled([[0.2, 0.2]], [[0.3, 0.3]])

    assert verdict(found) == "slower"
    assert found.low <= found.ratio <= found.high
    assert (found.low, found.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_zeros_and_a_single_sample_have_no_interval():
    assert sampled([[0.0, 0.0]], [[0.1, 0.1]]) is estimated(0.0, 0.1) is None
    assert sampled([[0.1, 0.1]], [[0.0, 0.1]]).interval is None
    assert sampled([[0.1]], [[0.2, 0.2]]) == TimeRatio(ratio=2.0)
