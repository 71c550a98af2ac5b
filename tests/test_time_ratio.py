"""The one rule by which times are told apart: its arithmetic, how often it is right, and that all who use it agree."""

import random
import re
from itertools import combinations, permutations
from math import exp, log, sqrt
from statistics import median

import pytest
from scipy import stats as peer

from profiler.analysis import time_ratio
from profiler.analysis.advice import BudgetPoint, advise, budget_frontier
from profiler.analysis.pairing import ALIGN, read_sides, times
from profiler.analysis.rows import SURE, Row, flat_row, is_beaten, rows, time_verdict_of
from profiler.analysis.time_ratio import TimeRatio, of_pairs, of_rounds, quotient, sample, units, verdict
from profiler.core.record import Record
from profiler.core.stats import Sampling, centre, num_warmup_pairs, pair_ratios, step_order, stop_reason
from profiler.views.report.section import budget, said, sentence
from profiler.views.tables.columns import UNSURE, group_table, ratio_text
from profiler.workflows.planner import is_slower
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
        (ratio(1.0, 0.991, 1.01), 0.5, "same"),
        (ratio(1.0, 0.99, 1.01), None, "cannot be told apart"),
        (ratio(1.2, 1.02, 2.5), None, "too noisy to tell"),
        (ratio(0.5, 0.0, 0.6), None, "too noisy to tell"),
        (ratio(1.2, 1.1, 1.3), 0.19, "slower"),
        (ratio(1.2, 1.1, 1.3), 0.21, "cannot be told apart"),
        (ratio(0.8, 0.7, 0.9), 0.24, "faster"),
        (ratio(0.8, 0.7, 0.9), 0.26, "cannot be told apart"),  # 1 / 1.26 is below 0.8
        (ratio(1.2, 1.005, 1.3), None, "cannot be told apart"),
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


# Pairs of steps


def test_every_second_cycle_is_turned_around_and_has_the_step_without_a_strategy_in_its_middle():
    pairs, others, cycles = (
        [(step_order(2 * two, number, **more), step_order(2 * two + 1, number, **more)) for two in range(600)]
        for number, more in ((1, {}), (1, {"round_number": 2}), (3, {}))
    )

    assert all(second == first[::-1] for first, second in (*pairs, *cycles))
    assert 200 < sum(first == [0, 1] for first, _ in pairs) < 400
    assert 200 < sum(one == other for one, other in zip(pairs, others, strict=True)) < 400
    assert {tuple(first) for first, _ in cycles} == {
        order for order in permutations(range(4)) if order.index(0) in (1, 2)
    }


def test_every_pair_counts():
    assert pair_ratios((1.0, 3.0, 9.0), (1.0, 1.0, 3.0)) == (1.0, 3.0, 3.0)
    assert pair_ratios((3.0, 0.0), (2.0, 1.0)) == (1.5,)  # a clock that stood still tells nothing
    assert pair_ratios((), ()) == ()


def test_warm_up_ends_with_a_pair():
    steady = [1.0] * 10

    assert num_warmup_pairs([9.0, *steady], [1.0, *steady]) == 1
    assert num_warmup_pairs([1.0, *steady], [9.0, 8.0, 7.0, *steady[2:]]) == 3
    assert num_warmup_pairs(steady, steady) == 0


def end(own: list[float], plain: list[float], sampling: Sampling, *, least_pairs: int = 2) -> str | None:
    return stop_reason(own, sampling, without=plain, least=least_pairs)


def test_sampling_ends_where_the_ratio_is_sure():
    same, few = [1.0] * 12, Sampling(max_samples=100, max_seconds=9.5)

    ends = [end(same[:count], same[:count], ENDLESS) for count in range(1, 9)]
    assert ends == [None, "target", "target", "target", "target", "target", None, "target"]  # not looked at after seven
    wide = [1.0, 1.2, 0.8, *same]
    assert end(wide[:3], same[:3], ENDLESS) is None
    assert end(wide[:5], same[:5], few) == "seconds"
    assert end(same[:1], same[:1], Sampling(max_seconds=1.0)) is None  # two pairs in any case
    assert end(wide[:2], same[:2], Sampling(max_seconds=1.0)) == "seconds"
    assert end(same[:5], same[:5], Sampling(max_seconds=1.0), least_pairs=6) is None
    assert end(wide[:4], same[:4], Sampling(max_samples=7), least_pairs=6) == "samples"
    assert end([1.0, 1.0149], [1.0, 1.0], ENDLESS) == "target"  # two pairs within half of the target of 3 %
    assert end([1.0, 1.0151], [1.0, 1.0], ENDLESS) is None


def test_a_first_look_is_one_pair_or_as_many_as_a_moment_holds():
    def look(seconds: float, count: int, sampling: Sampling = ENDLESS) -> str | None:
        return end([seconds] * count, [seconds * 1.2] * count, sampling, least_pairs=1)

    assert look(1.0, 1) == look(5.0, 1) == "look"
    assert look(0.01, 1) is None
    assert look(0.01, 2) == "target"
    assert end([0.01, 0.09, 0.02, 0.06], [0.02] * 4, ENDLESS, least_pairs=1) == "look"
    assert look(0.01, 1, Sampling(max_seconds=0.02)) == "seconds"  # never longer than was asked for


# The interval


@pytest.mark.parametrize("count", [6, 9, 15, 24])
def test_the_interval_lies_between_those_of_the_signed_ranks_around_95_percent(count):
    draw = random.Random(count)
    samples = [draw.gauss(3, 1) for _ in range(count)]
    truths = sorted((one + other) / 2 for at, one in enumerate(samples) for other in samples[at:])

    middle, (low, high) = centre(samples)

    def chance(truth: float) -> float:
        """How often samples are as far from the truth as these, by another's arithmetic."""
        return peer.wilcoxon([sample - truth for sample in samples], method="exact").pvalue

    assert middle == pytest.approx(median(truths))
    for end, others in ((low, truths), (high, truths[::-1])):
        beyond = [truth for truth in others if (truth < end if end is low else truth > end)]
        assert chance((beyond[-1] + end) / 2) == pytest.approx(0.05, abs=0.03)
        assert chance(beyond[-2] if len(beyond) > 1 else beyond[-1] - (1 if end is low else -1)) <= 0.05
        within = [truth for truth in others if (truth > end if end is low else truth < end)]
        assert chance((within[0] + within[1]) / 2) >= 0.05


def test_of_fewer_than_six_samples_there_is_no_interval_and_of_equal_ones_none_that_is_wide():
    assert centre([1.0, 2.0, 3.0, 4.0, 6.0]) == (3.0, None)
    assert centre([1.0] * 6) == (1.0, (1.0, 1.0))
    assert centre([1.0, 3.0, 2.0], level=0.75) == (2.0, (1.0, 3.0))


def test_rounds_are_found_to_differ_as_often_as_kruskal_and_wallis_say_and_then_widen_the_interval_to_hold_each():
    draw = random.Random(11)
    for _ in range(200):
        rounds = [[round(draw.gauss(level, 1), 1) for _ in range(draw.randrange(3, 9))] for level in (0, 0.5, 1)]
        found = peer.kruskal(*rounds).pvalue
        if abs(found - 0.05) > 0.003:  # the quantile is an approximation
            assert time_ratio._differ(rounds) == (found < 0.05)

    apart = of_pairs([[1.0 + level + 0.01 * place for place in range(8)] for level in (0.0, 0.3, 0.6)])
    assert apart.low <= 1.0351
    assert apart.high >= 1.634


def noisy(draw: random.Random, kind: str, slower: float, num_pairs: int) -> tuple[float, ...]:
    """The ratios of a round whose noise no strategy makes."""
    steps: dict[bool, list[float]] = {True: [], False: []}
    at, level, left = 0, 1.0, 0
    for number in range(num_pairs):
        for is_plain in (True, False) if step_order(number) == [0, 1] else (False, True):
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
    return pair_ratios(steps[False], steps[True])


@pytest.mark.parametrize("kind", ["normal", "drift", "spikes", "bursts", "autocorrelated"])
def test_the_interval_holds_the_truth_in_93_to_97_of_100(kind):
    draw, num_tries = random.Random(5), 600

    found = [of_pairs([noisy(draw, kind, 1.1, 12) for _ in range(3)]) for _ in range(num_tries)]

    held = sum(one.low <= 1.1 <= one.high for one in found) / num_tries
    error = sqrt(0.95 * 0.05 / num_tries)
    assert 0.93 - 2 * error <= held <= 0.97 + 2 * error


def paired_record(draw: random.Random, name: str, slower: float, noise: float, num_steps: int, **fields) -> Record:
    held, plain_held = (
        tuple(factor * 0.1 * draw.lognormvariate(0, noise) for _ in range(num_steps)) for factor in (slower, 1.0)
    )
    waits = 0.3 * (draw.random() < 0.5)  # a core that others use too: every fourth step waits
    with_it, without = (tuple(one + waits * (draw.random() < 0.25) for one in steps) for steps in (held, plain_held))
    steps = {"plain_step_seconds": without, "processor_seconds": held, "plain_processor_seconds": plain_held}
    return make.record(name, seconds=with_it, **steps, **fields)


def generated(seed: int) -> tuple[Row, ...]:
    draw = random.Random(seed)
    noise, num_steps = draw.choice((0.002, 0.02, 0.1, 0.5)), draw.choice((2, 4, 8, 24))
    slower = {"none": 1.0}
    slower |= {name: draw.choice((1.0, 1.005, 1.05, 1.3, 0.9)) for name in ("all", "sqrt", "segments:k=2", "k4")}
    peaks = {name: draw.choice((40, 50, 60, 100)) * MIB for name in slower}
    return rows(
        paired_record(draw, name, slower[name], noise, num_steps, peak=peaks[name], round=number)
        for number in (1, 2, 3)
        for name in slower
    )


@pytest.mark.parametrize("seed", range(200))
def test_table_picture_report_advice_and_frontier_say_the_same(seed):
    table = generated(seed)
    none = table[0]
    by_case = {row.case: row for row in table}

    # the table and what is exported
    column = next(column for column in group_table(table).columns if column.label == "time against none")
    cells = dict(zip([row.case for row in table], column.cells, strict=True))
    for row in table[1:]:
        told = time_verdict_of(row, none)
        assert row.time_verdict == flat_row(row)["time_verdict"] == told == verdict(row.time, floor=row.time_floor)
        assert (cells[row.case] == "too noisy to tell") == row.time.is_noisy
        assert (told == "too noisy to tell") <= row.time.is_noisy

    # steps, ratios and words: no row contradicts itself, and what is unsure is nowhere called faster
    for row in table[1:]:
        told, slid = time_verdict_of(row, none), budget(BudgetPoint(budget_bytes=0, best=row, by="time"))
        if not row.time.is_noisy:
            assert row.shown_seconds / none.shown_seconds == pytest.approx(row.time_ratio)
        for text in (cells[row.case], ratio_text(row), said(row).partition("step")[2], slid.partition("step")[2]):
            assert (UNSURE in text) == (told == "cannot be told apart" and not row.time.is_noisy), text
            assert not re.search(r"-[\d.]+ %", text) or told in ("faster", "same"), text
    if "less time" in sentence(advise(table), table):
        assert advise(table).chosen.time_verdict == "faster"

    # the pictures: on the frontier is all that is not surely beaten
    for row in table:
        beaten_by = [other for other in table if other.on_frontier and is_beaten(row, other)]
        assert row.on_frontier == (not beaten_by)

    # advice: its rivals are not told apart, and more memory is only bought with time that is surely less
    advice = advise(table)
    assert all(time_verdict_of(rival, advice.chosen) not in SURE for rival in advice.rivals)
    for point in budget_frontier(table):
        assert all(time_verdict_of(rival, point.best) not in SURE for rival in point.rivals)
    for smaller, larger in combinations(budget_frontier(table), 2):
        if larger is budget_frontier(table)[1]:
            assert time_verdict_of(larger.best, smaller.best) == "faster"
    assert by_case[advice.chosen.case] is advice.chosen

    # plans and comparisons
    for row, other in combinations(table, 2):
        assert is_slower(row, other) == (time_verdict_of(row, other) == "slower")
    records = [record for row in table for record in row.rounds]
    before, after = read_sides([("run", records)] * 2, align=ALIGN)
    for key, row in before.points.items():
        contrast = times(row, after.points[key])
        ratio_of_runs = TimeRatio(ratio=contrast.ratio, low=contrast.low, high=contrast.high)
        assert contrast.verdict == verdict(ratio_of_runs, floor=row.time_floor)


# Without pairs: two samples of seconds against each other


NOISE = {  # one is skewed as steps are: a shortest time, and now and then a longer one
    "normal": lambda source: source.gauss(1.0, 0.01),
    "skewed": lambda source: 1.0 + source.expovariate(50.0),
}
SHAPES = ((1, 10), (1, 30), (3, 5), (3, 10), (5, 5), (10, 5))  # rounds, and samples in each


def against(*sides: list[list[float]]) -> TimeRatio:
    return time_ratio.of_samples(*(sample(tuple(map(tuple, side))) for side in sides))


@pytest.mark.parametrize(
    ("kind", "shape"), [*(("normal", shape) for shape in SHAPES), ("skewed", (1, 30)), ("skewed", (3, 5))]
)
def test_the_interval_holds_the_true_ratio_in_95_of_100(kind, shape):
    source, num_tries = random.Random(7), 2000

    def side(slower: float) -> list[list[float]]:
        return [[slower * NOISE[kind](source) for _ in range(shape[1])] for _ in range(shape[0])]

    found = [against(side(1.0), side(1.07)) for _ in range(num_tries)]

    error, most = 3 * (0.95 * 0.05 / num_tries) ** 0.5, 0.96 if kind == "normal" else 0.965
    assert 0.95 - error <= sum(one.low <= 1.07 <= one.high for one in found) / num_tries <= most + error


def test_rounds_are_the_units_and_a_single_round_is_cut_into_stretches():
    assert units([[1.0, 9.0, 2.0], [3.0], []]) == [2.0, 3.0]
    assert units([[4.0, 1.0, 3.0]]) == [4.0, 1.0, 3.0]
    assert units([[float(step) for step in range(20)]]) == [step + 0.5 for step in range(0, 20, 2)]


def test_the_drift_of_a_process_is_not_taken_for_precision():
    """Rounds far apart: many samples within each must not make the interval narrow."""
    source = random.Random(4)
    apart = [[level * source.gauss(1.0, 0.001) for _ in range(100)] for level in (1.0, 1.1, 1.2)]

    found = against(apart, apart)

    assert found.low < 0.9
    assert found.high > 1.1


def test_the_quantiles_are_those_of_scipy():
    for tenths in range(10, 400):
        true = peer.t.ppf(0.975, tenths / 10)
        within = 2e-7 if tenths in range(10, 100, 10) else 0.04 if tenths < 20 else 0.01 if tenths < 100 else 2e-4
        assert time_ratio.t_quantile(tenths / 10) == pytest.approx(true, rel=within)


def test_samples_that_do_not_vary_or_are_zero_or_alone_divide_nothing_by_zero():
    same, other = against([[0.1 + 0.2] * 7], [[0.1 + 0.2] * 7]), against([[0.2, 0.2]], [[0.3, 0.3]])

    assert (same.ratio, verdict(same), same.interval) == (1.0, "same", (pytest.approx(1.0), pytest.approx(1.0)))
    assert (verdict(other), other.interval) == ("slower", (pytest.approx(1.5), pytest.approx(1.5)))
    assert against([[0.0, 0.0]], [[0.1, 0.1]]) is time_ratio.estimated(0.0, 0.1) is None
    assert against([[0.1, 0.1]], [[0.0, 0.1]]).interval is None
    assert against([[0.1]], [[0.2, 0.2]]) == TimeRatio(ratio=2.0)
    assert [verdict(time_ratio.estimated(1.0, seconds)) for seconds in (1.009, 1.011, 0.9)] == [
        "same",
        "slower",
        "faster",
    ]
    assert (of_rounds([1.1, 1.3, 1.2]).interval, of_rounds([1.1]).interval) == ((1.1, 1.3), None)
