"""Several runs side by side: what is aligned, what is refused, what is said."""

import msgspec
import pytest

from profiler.analysis.comparison import Comparison, Judgement, Match, judge, parse_rules
from profiler.analysis.pairing import ALIGN, read_sides
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.record import Record
from tests import make
from tests.compared_runs import H100, T4, against, compare_runs, record
from tests.make import MIB


def only(found: Comparison) -> Match:
    (match,) = found.matches
    return match


def test_rows_of_one_model_strategy_batch_and_precision_stand_beside_each_other_and_what_differs_is_told():
    threads = [{"environment": msgspec.structs.replace(T4, num_threads=number)} for number in (2, 8)]
    first = [record("none", **threads[0]), record("all", peak=80 * MIB, **threads[0])]
    second = [record("all", peak=40 * MIB, **threads[1]), record("none", **threads[1])]

    found = against(first, second)

    assert [(one.what, one.values) for one in found.differences] == [("threads", ("2", "8"))]
    assert [match.key["strategy"] for match in found.matches] == ["none", "all"]
    own, other = found.matches[1].cells
    assert (other.peak.ratio, other.peak.verdict, other.peak.low) == (0.5, "better", None)
    assert (own.peak, own.time, own.peak_bytes) == (None, None, 80 * MIB)  # the baseline's has nothing to compare


@pytest.mark.parametrize(
    ("before", "after", "ratio", "verdict"), [(100, 101, 1.01, "worse"), (0, 0, 1.0, "same"), (0, 1, None, "worse")]
)
def test_bytes_are_compared_exactly(before, after, ratio, verdict):
    contrast = only(against([record(peak=before, static=0)], [record(peak=after, static=0)])).cells[1].peak

    assert (contrast.ratio, contrast.verdict, contrast.low) == (ratio, verdict, None)


@pytest.mark.parametrize(("first", "second", "verdict"), [(0.0, 0.0, "same"), (0.0, 0.1, "cannot be told apart")])
def test_steps_that_take_no_time_divide_nothing_by_zero(first, second, verdict):
    sides = [[record(seconds=(seconds, seconds))] for seconds in (first, second)]

    assert only(against(*sides)).cells[1].time.verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "slower"), (0.7, "cannot be told apart"), (None, "slower")])
def test_no_difference_is_called_one_that_is_below_what_other_processes_took(share, verdict):
    """AdamW was said to be 34 % slower than SGD in a run from which 59 % of the time was stolen."""
    seconds = share and tuple(share * second for second in record(slower=1.34).readings.step_seconds)

    assert only(against([record()], [record(slower=1.34, processor_seconds=seconds)])).cells[1].time.verdict == verdict


def test_an_axis_that_is_not_aligned_by_would_make_two_rows_one():
    twice, hint = [record(), record(optimizer=Choice("adam"))], f"--align {','.join(ALIGN)},optimizer"

    with pytest.raises(UserError, match="only one run"):
        compare_runs([("one", [record()])])
    with pytest.raises(UserError, match="optimizer", check=lambda error: (error.exit_code, error.hint) == (4, hint)):
        against(twice, twice)

    assert len(against(twice, twice, align=(*ALIGN, "optimizer")).matches) == 2


def test_a_run_of_one_round_says_what_its_interval_does_not_know():
    twice = [record(), record(round=2)]

    assert "B: of one round" in against(twice, [record()]).remarks[0]
    assert against(twice, twice).remarks == ()


@pytest.mark.parametrize(
    ("first", "second", "peak", "time"),
    [  # MiB and slowness of none and all on each side; then of each quantity the same, the close and the swapped pairs
        (((90, 1.0), (50, 1.3)), ((80, 0.1), (60, 0.2)), (1, 0, (), 1.0), (1, 0, (), 1.0)),
        (((9, 1.5), (9, 1.0)), ((9, 1.0), (9, 1.5)), (0, 1, (), None), (0, 0, (("all", "none"),), -1.0)),
        (((9, 1.5), (9, 1.0)), ((9, 1.0), (9, 1.001)), (0, 1, (), None), (0, 1, (), None)),  # on one within the noise
    ],
)
def test_devices_agree_on_the_order_of_strategies_or_the_pairs_that_swap_are_named(first, second, peak, time):
    def side(*points: tuple[float, float]) -> list[Record]:
        named = zip(("none", "all"), points, strict=True)
        return [record(name, peak=mib * MIB, static=0, slower=slower) for name, (mib, slower) in named]

    orders = against(side(*first), side(*second)).orders

    assert [(one.num_same, one.num_close, one.swapped, one.tau) for one in orders] == [peak, time]


def test_each_device_is_told_the_fastest_that_fits_its_own_memory():
    ways = [("none", 500, 1.0), ("selective", 380, 1.1), ("all", 300, 1.3)]  # MiB besides CUDA's 600; T4 has 1000
    large, middle, little = (
        [record(name, peak=peak * MIB, slower=slower, device="fake:gpu", environment=on) for name, peak, slower in ways]
        for on in (H100, T4, msgspec.structs.replace(T4, device_bytes=650 * MIB))
    )

    on_large, on_middle = against(large, middle).advice
    on_little, _ = against(little, little).advice
    unsure = against([record("none"), record("segments:k=1", slower=0.9999)], [record("none")]).advice[0]

    assert (on_large.strategy, on_middle.strategy, unsure.strategy) == ("none", "selective", "none")
    assert on_middle.needed_bytes == (380 + 600) * MIB
    assert (on_little.strategy, on_little.reason) == (None, "none of these fits")


def judged(text: str, first: list[Record], second: list[Record]) -> Judgement:
    return judge(read_sides([("one", first), ("two", second)], align=ALIGN), parse_rules(text), align=ALIGN)


def test_a_gate_trips_over_its_limit_and_not_below():
    first, second = [record(peak=100 * MIB)], [record(peak=103 * MIB)]
    failed, fine = make.failed("all", "out_of_memory", "why", environment=T4), [record("none"), record("all")]

    assert len(judged("peak:>2%", first, second).tripped) == 1
    assert judged("peak:>3%", first, second).tripped == ()
    assert judged("peak:>2%", second, first).tripped == ()
    assert judged("peak:>0%", [record("none"), failed], fine).tripped == ()  # it was not ok before


def test_a_slower_step_trips_only_where_it_is_sure():
    noisy = (0.05, 0.25, 0.10, 0.17, 0.13)

    sure = judged("time:>5%", [record()], [record(slower=1.1)])
    unsure = judged("time:>5%", [record(seconds=noisy)], [record(seconds=noisy)])
    slower = judged("time:>5%", [record(seconds=noisy)], [record(seconds=tuple(second * 1.1 for second in noisy))])

    assert len(sure.tripped) == 1
    assert unsure == Judgement(tripped=(), unsure=())
    assert (len(slower.tripped), len(slower.unsure)) == (0, 1)
    wide = [record(slower=slower, round=number) for number, slower in enumerate((10, 40, 22, 15))]
    (beyond,) = judged("time:>50%", [record(round=number) for number in range(4)], wide).tripped
    assert beyond.contrast.verdict == "too noisy to tell"  # but all of its interval is over the limit


@pytest.mark.parametrize("rule", ["peak:>50%", "time:>50%"])
def test_a_row_that_is_gone_or_not_ok_any_more_trips_every_rule(rule):
    first = [record("none"), record("all"), record("sqrt")]
    second = [record("none"), make.failed("all", "out_of_memory", "why", environment=T4)]

    found = {one.key["strategy"]: one.reason for one in judged(rule, first, second).tripped}
    assert found == {"all": "out of memory", "sqrt": "not in this run"}


@pytest.mark.parametrize(
    "text", ["", "peak", "peak>2%", "speed:>2%", "peak:>2", "peak:>-2%", "peak:>1%,peak:>2%", "peak:>x%"]
)
def test_a_rule_that_cannot_be_read_is_the_users_error(text):
    with pytest.raises(UserError, match="--fail-on", check=lambda error: error.exit_code == 2):
        parse_rules(text)


REFUSED = {
    "torch": ({}, {"environment": msgspec.structs.replace(T4, torch="2.16.0")}),
    "optimizer": ({}, {"optimizer": Choice("adam")}),
    "accumulate": ({}, {"accumulate": 2}),
    "data": ({"built": None}, {"built": None, "data": "files"}),
    "model": ({}, {"model": Choice("mlp")}),
    "num_parameters": ({}, {"built": msgspec.structs.replace(make.record().built, num_parameters=2000)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_the_meaning_is_refused_unless_it_is_allowed(name):
    first, second = ([record(**fields)] for fields in REFUSED[name])

    with pytest.raises(UserError, match=name, check=lambda e: e.exit_code == 4 and e.hint.endswith(name)):
        against(first, second)

    assert len(against(first, second, allowed=[name]).matches) == 1
