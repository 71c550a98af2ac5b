"""The one rule by which times are told apart: its arithmetic, how often it is right, and that all who use it agree."""

from __future__ import annotations

import random
from itertools import combinations
from math import exp, log, sqrt

import pytest
from scipy import stats as peer

from profiler.analysis import row_times, telling_apart
from profiler.analysis.advice import advise, budget_frontier
from profiler.analysis.flat_row import flat_row
from profiler.analysis.pairing import ALIGN, sides, times
from profiler.analysis.rows import Row, rows
from profiler.analysis.telling_apart import TimeRatio, of_groups, of_rounds, quotient, verdict
from profiler.core.paired_steps import group_ratios, is_plain_first, num_warmup_pairs, stop_reason
from profiler.core.record import Record
from profiler.core.stats import Sampling, smooth_interval
from profiler.views.report import frontier_points
from profiler.views.tables.columns import columns
from profiler.workflows.plan_choice import is_slower
from tests import make
from tests.make import MIB

ENDLESS = Sampling(max_samples=10_000, max_seconds=1e9)


def ratio(middle: float, low: float | None = None, high: float | None = None) -> TimeRatio:
    return TimeRatio(ratio=middle, low=low, high=high)


# The verdict, line by line of its table


@pytest.mark.parametrize(
    ("time", "floor", "said"),
    [
        (None, None, "cannot be told apart"),
        (ratio(2.0), None, "cannot be told apart"),
        (ratio(1.0, 0.991, 1.01), 0.5, "same"),
        (ratio(1.0, 0.99, 1.01), None, "cannot be told apart"),
        (ratio(1.2, 1.02, 2.5), None, "too noisy to tell"),
        (ratio(3.0, 1.4, 4.0), None, "too noisy to tell"),
        (ratio(0.5, 0.0, 0.6), None, "too noisy to tell"),
        (ratio(1.2, 1.1, 1.3), None, "slower"),
        (ratio(1.2, 1.1, 1.3), 0.19, "slower"),
        (ratio(1.2, 1.1, 1.3), 0.21, "cannot be told apart"),
        (ratio(0.8, 0.7, 0.9), None, "faster"),
        (ratio(0.8, 0.7, 0.9), 0.24, "faster"),
        (ratio(0.8, 0.7, 0.9), 0.26, "cannot be told apart"),  # 1 / 1.26 is below 0.8
        (ratio(1.2, 1.005, 1.3), None, "cannot be told apart"),
        (ratio(0.9, 0.8, 0.995), None, "cannot be told apart"),
    ],
)
def test_the_verdict_is_the_first_line_of_the_table_that_holds(time, floor, said):
    assert verdict(time, floor=floor) == said


def test_a_quotient_adds_what_both_reach_as_squares_of_logarithms():
    found = quotient(ratio(1.2, 1.2 * exp(-0.03), 1.2 * exp(0.04)), ratio(0.8, 0.8 * exp(-0.03), 0.8 * exp(0.04)))

    assert found.ratio == pytest.approx(1.5)
    assert log(found.low / 1.5) == pytest.approx(-0.05)
    assert log(found.high / 1.5) == pytest.approx(0.05)
    assert quotient(ratio(1.2, 1.1, 1.3), ratio(0.8)).interval is None


def test_a_verdict_turned_around_is_its_opposite():
    draw = random.Random(3)
    opposite = {"faster": "slower", "slower": "faster"}
    for _ in range(300):
        first, second = (of_groups([[draw.lognormvariate(0, 0.05) for _ in range(8)]]) for _ in range(2))
        told = verdict(quotient(first, second), floor=0.01)
        assert verdict(quotient(second, first), floor=0.01) == opposite.get(told, told)


# Groups of steps


def test_a_linear_drift_cancels_in_every_group_of_four():
    with_it, without = [], []
    for number in range(16):
        early, late = 1 + 0.02 * number, 1 + 0.02 * number + 0.01
        plain, own = (early, late) if is_plain_first(number) else (late, early)
        with_it.append(own)
        without.append(plain)

    assert group_ratios(with_it, without) == pytest.approx([1.0] * 8)
    assert any(mine != other for mine, other in zip(with_it, without, strict=True))


def test_every_group_turns_one_of_its_pairs_around_and_which_is_drawn():
    orders = [(is_plain_first(2 * group), is_plain_first(2 * group + 1)) for group in range(200)]

    assert all(first != second for first, second in orders)
    assert 70 < sum(first for first, _ in orders) < 130


def test_a_pair_that_is_left_over_counts_only_where_there_is_no_group():
    assert group_ratios((1.0, 3.0, 9.0), (1.0, 1.0, 1.0)) == (2.0,)
    assert group_ratios((3.0,), (2.0,)) == (1.5,)
    assert group_ratios((), ()) == ()


def test_warm_up_ends_with_a_group():
    steady = [1.0] * 10

    assert num_warmup_pairs([9.0, *steady], [1.0, *steady]) == 2
    assert num_warmup_pairs([1.0, *steady], [9.0, 8.0, 7.0, *steady[2:]]) == 4
    assert num_warmup_pairs(steady, steady) == 0


def test_sampling_ends_where_the_ratio_is_sure_and_never_within_a_group():
    same, few = [1.0] * 12, Sampling(max_samples=100, max_seconds=9.5)

    ends = [stop_reason(same[:count], same[:count], ENDLESS, least=5) for count in range(1, 9)]
    assert ends == [None, None, None, None, None, "target", None, "target"]
    wide = [1.0, 1.0, 1.2, 1.2, 0.8, 0.8, *same]
    assert stop_reason(wide[:6], same[:6], ENDLESS, least=5) is None
    assert stop_reason(wide[:5], same[:5], few, least=5) is None  # over, and half of a group
    assert stop_reason(wide[:6], same[:6], few, least=5) == "seconds"
    assert stop_reason(same[:2], same[:2], Sampling(max_seconds=1.0), least=5) is None  # two groups in any case
    assert stop_reason(same[:4], same[:4], Sampling(max_seconds=1.0), least=5) == "seconds"
    assert stop_reason(wide[:4], same[:4], Sampling(max_samples=7), least=5) == "samples"


# The interval


def test_the_interval_lies_between_those_of_the_order_statistics_around_95_percent():
    samples = [float(value) for value in range(1, 11)]  # of ten, 2 to 9 hold the median at 97.9 %, 3 to 8 at 89.1 %
    wider, narrower = (1 - 2 * peer.binom.cdf(rank, 10, 0.5) for rank in (1, 2))
    share = (wider - 0.95) / (wider - narrower)
    inward = 8 * share / (2 + 6 * share)

    assert smooth_interval(samples) == pytest.approx((2 + inward, 9 - inward))
    assert smooth_interval(samples[:5]) is None
    assert smooth_interval([1.0] * 6) == (1.0, 1.0)


def test_rounds_that_differ_by_more_than_their_groups_widen_the_interval_to_hold_each():
    alike = [[1.0 + 0.01 * place for place in range(8)] for _ in range(3)]
    apart = [[level + value for value in alike[0]] for level in (0.0, 0.3, 0.6)]

    assert telling_apart._differ(alike) is False
    assert telling_apart._differ(apart) is True
    assert peer.kruskal(*apart).pvalue < 0.05
    found = of_groups(apart)
    assert found.low <= 1.0351
    assert found.high >= 1.635


def test_rounds_are_found_to_differ_as_often_as_kruskal_and_wallis_say():
    draw = random.Random(11)
    for _ in range(200):
        rounds = [[round(draw.gauss(level, 1), 1) for _ in range(draw.randrange(3, 9))] for level in (0, 0.5, 1)]
        found = peer.kruskal(*rounds).pvalue
        if abs(found - 0.05) > 0.003:  # the quantile is an approximation
            assert telling_apart._differ(rounds) == (found < 0.05)


def noisy(draw: random.Random, kind: str, slower: float, num_pairs: int) -> tuple[float, ...]:
    """The ratios of a round whose noise no strategy makes."""
    steps: dict[bool, list[float]] = {True: [], False: []}
    at, level, left = 0, 1.0, 0
    for number in range(num_pairs):
        for is_plain in (True, False) if is_plain_first(number) else (False, True):
            at += 1
            left = draw.randrange(3, 40) if left <= 0 and draw.random() < 0.03 else left - 1
            level = 1 + 0.9 * (level - 1) + draw.gauss(0, 0.02)
            disturbed = {
                "normal": 1.0,
                "drift": 1 + 0.005 * at,
                "spikes": 1 + (draw.random() if draw.random() < 0.1 else 0),
                "bursts": 1.7 if left > 0 else 1.0,
                "autocorrelated": level,
            }[kind]
            steps[is_plain].append((1.0 if is_plain else slower) * disturbed * draw.gauss(1, 0.02))
    return group_ratios(steps[False], steps[True])


@pytest.mark.parametrize("kind", ["normal", "drift", "spikes", "bursts", "autocorrelated"])
def test_the_interval_holds_the_truth_in_93_to_97_of_100(kind):
    draw, num_tries = random.Random(5), 600

    found = [of_groups([noisy(draw, kind, 1.1, 12) for _ in range(3)]) for _ in range(num_tries)]

    held = sum(one.low <= 1.1 <= one.high for one in found) / num_tries
    error = sqrt(0.95 * 0.05 / num_tries)
    assert 0.93 - 2 * error <= held <= 0.97 + 2 * error


# All who use it agree


def series(draw: random.Random, slower: float, noise: float, num_groups: int) -> tuple[tuple[float, ...], ...]:
    """Steps with a strategy and without it."""
    with_it = tuple(slower * 0.1 * draw.lognormvariate(0, noise) for _ in range(2 * num_groups))
    return with_it, tuple(0.1 * draw.lognormvariate(0, noise) for _ in range(2 * num_groups))


def paired_record(draw: random.Random, name: str, slower: float, noise: float, groups: int, **fields) -> Record:
    with_it, without = series(draw, slower, noise, groups)
    made = make.record(name, seconds=with_it, **fields)
    return Record(**{**_fields(made), "readings": _paired(made, without)})


def _fields(record: Record) -> dict:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _paired(record: Record, without: tuple[float, ...]):
    return type(record.readings)(
        **{name: getattr(record.readings, name) for name in record.readings.__struct_fields__}
        | {"plain_step_seconds": without}
    )


def generated(seed: int) -> tuple[Row, ...]:
    draw = random.Random(seed)
    noise, groups = draw.choice((0.002, 0.02, 0.1, 0.5)), draw.choice((1, 2, 4, 12))
    names = ["none", "all", "sqrt", "segments:k=2", "segments:k=4"]
    slower = {name: draw.choice((1.0, 1.005, 1.05, 1.3, 0.9)) if name != "none" else 1.0 for name in names}
    peaks = {name: draw.choice((40, 50, 60, 100)) * MIB for name in names}
    return rows(
        paired_record(draw, name, slower[name], noise, groups, peak=peaks[name], round=number)
        for number in (1, 2, 3)
        for name in names
    )


@pytest.mark.parametrize("seed", range(500))
def test_table_picture_report_advice_and_frontier_say_the_same(seed):
    table = generated(seed)
    none = table[0]
    by_case = {row.case: row for row in table}

    # the table and what is exported
    cells = dict(zip([row.case for row in table], columns(table).time[-1].cells, strict=True))
    for row in table[1:]:
        told = row_times.verdict(row, none)
        assert row.time_verdict == flat_row(row).time_verdict == told == verdict(row.time, floor=row.time_floor)
        assert (cells[row.case] == "too noisy to tell") == row.time.is_noisy
        assert (told == "too noisy to tell") <= row.time.is_noisy

    # the pictures: on the frontier is all that is not surely beaten
    for row in table:
        beaten_by = [
            other for other in table if other.on_frontier and row_times.Timed(row).is_beaten_by(row_times.Timed(other))
        ]
        assert row.on_frontier == (not beaten_by)
    kinds = {point.case: point.kind for point in frontier_points.frontier(table).points}
    assert all((kinds[row.case.id] == "beaten") == (not row.on_frontier) for row in table if row is not none)

    # advice: its rivals are not told apart, and more memory is only bought with time that is surely less
    advice = advise(table)
    assert all(row_times.verdict(rival, advice.chosen) not in row_times.SURE for rival in advice.rivals)
    for point in budget_frontier(table):
        assert all(row_times.verdict(rival, point.best) not in row_times.SURE for rival in point.rivals)
    for smaller, larger in combinations(budget_frontier(table), 2):
        if larger is budget_frontier(table)[1]:
            assert row_times.verdict(larger.best, smaller.best) == "faster"
    assert by_case[advice.chosen.case] is advice.chosen

    # plans and comparisons
    for row, other in combinations(table, 2):
        assert is_slower(row, other) == (row_times.verdict(row, other) == "slower")
    records = [record for row in table for record in row.rounds]
    (before,), (after,) = (sides([("run", records)], align=ALIGN) for _ in range(2))
    for key, sampled in before.points.items():
        contrast = times(sampled, after.points[key])
        ratio_of_runs = TimeRatio(ratio=contrast.ratio, low=contrast.low, high=contrast.high)
        assert contrast.verdict == verdict(ratio_of_runs, floor=sampled.row.time_floor)


def test_sets_of_every_verdict_are_among_those_that_are_generated():
    told = {row.time_verdict for seed in range(60) for row in generated(seed)}

    assert told == {"faster", "slower", "same", "cannot be told apart", "too noisy to tell"}


def test_rounds_without_pairs_have_their_range_and_one_round_has_none():
    assert of_rounds([1.1, 1.3, 1.2]).interval == (1.1, 1.3)
    assert of_rounds([1.1]).interval is None
