"""What a group of rows is said to advise, what is best for a budget, and how surely: from numbers made by hand."""

from collections.abc import Sequence

import msgspec
import pytest

from profiler.analysis.advice import MOST_POINTS, advise, budget_frontier, certainty
from profiler.analysis.live_bytes import categories
from profiler.analysis.rows import Row, is_apart, rows
from profiler.core.record import Record
from profiler.views.report.section import budget, sentence
from tests import examples, make
from tests.make import MIB

CALM = (0.100, 0.101, 0.102)


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * second for second in CALM)


def said(records: Sequence[Record]) -> str:
    table = rows(records)
    return sentence(advise(table), table)


def predicted(strategy: str, *, peak: int, seconds: tuple[float, ...] | None) -> Record:
    found = make.record(strategy, peak=peak, case=make.case(strategy, device="fake:h100"))
    readings = examples.untimed_readings(found.readings)
    return msgspec.structs.replace(found, readings=msgspec.structs.replace(readings, step_seconds=seconds))


def of(table: Sequence[Row], strategy: str) -> Row:
    return next(row for row in table if row.case.strategy == strategy)


# --- the sentence


@pytest.mark.slow
def test_the_fastest_that_saves_most_is_advised_with_what_it_saves_and_costs():
    records = [
        make.record("none", peak=100 * MIB, seconds=times(1)),
        make.record("all", peak=50 * MIB, saved=10 * MIB, seconds=times(1.4)),
        make.record("sqrt", peak=50 * MIB, saved=12 * MIB, seconds=times(1.19)),
        make.record("every:k=2", peak=80 * MIB, seconds=times(1.05)),
    ]

    assert said(records).startswith("sqrt halves the peak (100 MiB to 50.0 MiB) for 19 % more time; below 50.0 MiB")


def test_where_nothing_saves_the_advice_is_to_keep_none():
    records = [make.record("none", peak=100 * MIB), make.record("all", peak=99 * MIB, seconds=times(0.5))]

    assert said(records).startswith("keep none: nothing here saves 2 % of its peak of 100 MiB")


@pytest.mark.parametrize(
    ("points", "words", "best"),
    [
        (  # a noisy row is not taken before one that is faster at the same peak
            {"segments:k=1": (52, (0.219, 0.220, 0.221)), "segments:k=2": (44, (0.254, 0.255, 0.256)),
             "segments:k=4": (44, (0.2, 0.256, 0.3))},
            "the fastest of what ran is segments:k=1 ", ["segments:k=2", "segments:k=1"],
        ),
        (  # of two single samples at one peak both name the faster, and none where it fits
            {"none": (52, (0.2,)), "segments:k=2": (44, (0.28,)), "segments:k=8": (44, (0.24,))},
            "segments:k=8 lowers", ["segments:k=8", "none"],
        ),
        (  # more memory is not bought with what may be chance
            {"none": (50, (0.98, 1.0, 1.02)), "all": (80, (0.97, 0.999, 1.02))}, "keep none", ["none"],
        ),
    ],
)  # fmt: skip
def test_neither_noise_nor_chance_is_advised(points, words, best):
    records = [make.record(name, peak=peak * MIB, seconds=seconds) for name, (peak, seconds) in points.items()]

    assert words in said(records)
    assert [one.best.case.strategy for one in budget_frontier(rows(records))] == best


def test_wrong_gradients_are_never_advised():
    records = [
        make.record("none", peak=100 * MIB, seconds=times(1)),
        make.record("all", peak=50 * MIB, seconds=times(1.3)),
        make.record("wrong", peak=10 * MIB, seconds=times(0.5), outcome="invalid"),
    ]

    found = advise(rows(records))

    assert found.chosen is not None
    assert (found.chosen.case.strategy, found.lowest) == ("all", found.chosen)
    assert "wrong" not in said(records)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (times(1.5), "for 50 % more time"),
        ((0.1, 0.2, 0.4), "in a time that is too noisy to tell"),
        ((0.2,), "for 98 % more time, unsure: too few steps"),
    ],
)
def test_the_time_is_told_as_surely_as_it_is_known(seconds, words):
    records = [make.record("none", seconds=times(1)), make.record("all", peak=50 * MIB, seconds=seconds)]

    assert words in said(records)


def test_no_budget_is_given_a_change_of_time_that_is_noise():
    apart = make.record("all", peak=50 * MIB, seconds=(0.1, 0.2, 0.8) * 3)
    paired = msgspec.structs.replace(apart.readings, plain_step_seconds=(0.1,) * 9)
    table = rows([make.record("none", seconds=times(1)), msgspec.structs.replace(apart, readings=paired)])

    lowest = budget_frontier(table)[0]

    assert table[1].time.is_noisy
    assert budget(lowest).endswith(", a time too noisy to tell)")


def test_strategies_whose_times_overlap_are_named_as_equals():
    records = [
        make.record("none", peak=100 * MIB, seconds=times(1)),
        make.record("all", peak=50 * MIB, seconds=times(1.200)),
        make.record("sqrt", peak=50 * MIB, seconds=times(1.201)),
        make.record("slow", peak=50 * MIB, seconds=times(1.5)),
    ]

    found = advise(rows(records))

    assert [row.case.strategy for row in found.rivals] == ["sqrt"]
    assert "and sqrt is as fast as far as can be told" in said(records)


def test_of_equals_in_time_the_one_with_the_lowest_peak_is_advised():
    records = [
        make.record("none", peak=100 * MIB, seconds=times(1)),
        make.record("all", peak=50 * MIB, seconds=times(1.201)),
        make.record("sqrt", peak=52 * MIB, seconds=times(1.200)),
    ]

    found = advise(rows(records))

    assert found.chosen is not None
    assert found.chosen.case.strategy == "all"


# --- why it is no lower


def lowest(**fields: object) -> Sequence[Record]:
    return [make.record("none", peak=200 * MIB, saved=150 * MIB), make.record("all", **fields)]


@pytest.mark.parametrize(
    ("peak", "static", "saved", "phase", "words"),
    [
        (100, 80, 10, "backward", "60.0 MiB of the peak's 100 MiB is static"),  # gradients were not there: a quarter
        (100, 20, 60, "backward", "keep holds 60.0 MiB"),
        (100, 20, 10, "backward", "in the backward holds 75.0 MiB"),
        (100, 20, 10, "optimizer", "the optimizer's step"),
    ],
)
def test_the_largest_part_of_the_lowest_peak_is_why_it_is_no_lower(peak, static, saved, phase, words):
    records = lowest(peak=peak * MIB, static=static * MIB, saved=saved * MIB)
    inside = msgspec.structs.replace(records[1].readings, peak_phase=phase)

    text = said([records[0], msgspec.structs.replace(records[1], readings=inside)])

    assert words in text.partition("nothing measured here helps: ")[2]


# --- the best for every budget


def test_every_budget_has_the_fastest_that_fits():
    records = [
        make.record("none", peak=100 * MIB, seconds=times(1)),
        make.record("all", peak=40 * MIB, seconds=times(1.4)),
        make.record("sqrt", peak=60 * MIB, seconds=times(1.2)),
        make.record("poor", peak=70 * MIB, seconds=times(1.3)),
    ]

    found = budget_frontier(rows(records))

    told = [(stair.budget_bytes // MIB, stair.best.case.strategy, stair.by) for stair in found]
    assert told == [(40, "all", "time"), (60, "sqrt", "time"), (100, "none", "time")]
    assert [stair.rivals for stair in found] == [(), (), ()]


def test_at_the_same_peak_none_stays_where_the_times_cannot_be_told_apart():
    records = [make.record("none", seconds=times(1)), make.record("segments:k=1", seconds=times(0.999))]

    (stair,) = budget_frontier(rows(records))

    assert stair.best.case.strategy == "none"
    assert [row.case.strategy for row in stair.rivals] == ["segments:k=1"]


def test_without_times_the_flops_decide():
    def counted(strategy: str, peak: int, flops: int) -> Record:
        found = predicted(strategy, peak=peak * MIB, seconds=None)
        readings = msgspec.structs.replace(found.readings, forward_flops=flops, backward_flops=flops)
        return msgspec.structs.replace(found, readings=readings)

    found = budget_frontier(rows([counted("none", 100, 3), counted("all", 50, 5), counted("poor", 60, 6)]))

    assert [(stair.best.case.strategy, stair.by) for stair in found] == [("all", "flops"), ("none", "flops")]


def test_without_times_and_flops_only_the_lowest_peak_is_known():
    found = budget_frontier(rows([predicted("none", peak=100, seconds=None), predicted("all", peak=50, seconds=None)]))

    assert [(stair.best.case.strategy, stair.by) for stair in found] == [("all", "peak")]


def test_of_very_many_stairs_both_ends_are_kept():
    records = [make.record(f"every:k={at}", peak=1000 - at, seconds=times(1 + at)) for at in range(100)]

    found = budget_frontier(rows(records))

    assert len(found) == MOST_POINTS
    assert (found[0].budget_bytes, found[-1].budget_bytes) == (901, 1000)


# --- certainty, and the parts of a peak


def test_rounds_tell_by_their_own_ratios():
    def round_of(number: int, factor: float) -> list[Record]:
        drift = 1 + 0.05 * number
        found = {"none": 1.0, "a": factor, "b": factor + 0.05, "c": 2 * factor}
        return [make.record(name, seconds=times(drift * by), round=number) for name, by in found.items()]

    table = rows([*round_of(1, 1.2), *round_of(2, 1.3)])
    none, a, b, c = (of(table, name) for name in ("none", "a", "b", "c"))

    assert certainty(a, baseline=none) == "sure"
    assert is_apart(a, none)
    assert not is_apart(a, b)  # 1.20 to 1.30, and 1.25 to 1.35
    assert is_apart(a, c)


def test_the_categories_of_a_peak_sum_to_it():
    readings = msgspec.structs.replace(make.record(peak=100 * MIB).readings, peak_gradient_bytes=3 * MIB)

    found = {part.name: part.nbytes // MIB for part in categories(readings)}

    assert found == {"parameters": 5, "inputs": 10, "gradients": 3, "saved": 60, "rest": 22}


def test_what_is_static_and_was_not_told_apart_is_one_part():
    readings = msgspec.structs.replace(make.record(peak=100 * MIB).readings, static_bytes=None)

    assert {part.name: part.nbytes // MIB for part in categories(readings)} == {"static": 15, "saved": 60, "rest": 25}
