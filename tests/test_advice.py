"""What a group of rows is said to advise, what is best for a budget, and how surely: from numbers made by hand."""

from collections.abc import Sequence

import pytest

from profiler.analysis.advice import advise, budget_frontier
from profiler.analysis.live_bytes import categories
from profiler.analysis.rows import rows
from profiler.core.record import Record
from profiler.views.report.section import sentence
from tests import make
from tests.make import MIB

CALM = (0.100, 0.101, 0.102)


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * second for second in CALM)


def measured(**points: tuple[int, float]) -> list[Record]:
    """Records by strategy, each of a peak in MiB and the factor of its time."""
    return [make.record(name, peak=peak * MIB, seconds=times(factor)) for name, (peak, factor) in points.items()]


def said(records: Sequence[Record]) -> str:
    table = rows(records)
    return sentence(advise(table), table)


def predicted(strategy: str, *, peak: int, flops: int | None = None) -> Record:
    """A record without seconds."""
    told = {"device": "fake:h100", "forward_flops": flops, "backward_flops": flops}
    return make.record(strategy, peak=peak * MIB, **told, **make.UNTIMED)


def test_the_fastest_that_saves_most_is_advised_with_what_it_saves_and_costs():
    none, useless = measured(none=(100, 1), all=(99, 0.5))
    wrong = make.record("wrong", peak=10 * MIB, seconds=times(0.5), outcome="invalid")
    records = [
        make.record("all", peak=50 * MIB, saved=10 * MIB, seconds=times(1.4)),
        make.record("sqrt", peak=50 * MIB, saved=12 * MIB, seconds=times(1.19)),
        make.record("every:k=2", peak=80 * MIB, seconds=times(1.05)),
    ]

    sentences = said([none, *records, wrong]), said([none, useless])

    assert sentences[0].startswith("sqrt halves the peak (100 MiB to 50.0 MiB) for 19 % more time; below 50.0 MiB")
    assert sentences[1].startswith("keep none: nothing here saves 2 % of its peak of 100 MiB")


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (times(1.5), "for 50 % more time"),
        ((0.1, 0.2, 0.4), "in a time that is too noisy to tell"),
        ((0.2,), "for 98 % more time, unsure: too few steps"),
    ],
)
def test_the_time_is_told_as_surely_as_it_is_known(seconds, words):
    assert words in said([make.record("none", seconds=times(1)), make.record("all", peak=50 * MIB, seconds=seconds)])


def test_of_strategies_whose_times_overlap_the_lowest_peak_is_advised_and_the_others_are_named():
    records = measured(none=(100, 1), all=(50, 1.201), sqrt=(52, 1.200), slow=(50, 1.5))

    found = advise(rows(records))

    assert found.chosen is not None
    assert (found.chosen.case.strategy, [row.case.strategy for row in found.rivals]) == ("all", ["sqrt"])
    assert "and sqrt is as fast as far as can be told" in said(records)


def test_every_budget_has_the_fastest_that_fits():
    found = budget_frontier(rows(measured(none=(100, 1), all=(40, 1.4), sqrt=(60, 1.2), poor=(70, 1.3))))

    told = [(stair.budget_bytes // MIB, stair.best.case.strategy, stair.by) for stair in found]
    assert told == [(40, "all", "time"), (60, "sqrt", "time"), (100, "none", "time")]
    assert [stair.rivals for stair in found] == [(), (), ()]


def test_without_times_the_flops_decide_and_without_those_only_the_lowest_peak_is_known():
    counted = [
        predicted("none", peak=100, flops=3),
        predicted("all", peak=50, flops=5),
        predicted("poor", peak=60, flops=6),
    ]

    by_flops, by_peak = (
        [(stair.best.case.strategy, stair.by) for stair in budget_frontier(rows(records))]
        for records in (counted, [predicted("none", peak=100), predicted("all", peak=50)])
    )

    assert by_flops == [("all", "flops"), ("none", "flops")]
    assert by_peak == [("all", "peak")]


def test_the_categories_of_a_peak_sum_to_it():
    both = make.record(peak_gradient_bytes=3 * MIB), make.record(static_bytes=None)

    found, whole = ({part.name: part.nbytes // MIB for part in categories(one.readings)} for one in both)

    assert found == {"parameters": 5, "inputs": 10, "gradients": 3, "saved": 60, "rest": 22}
    assert whole == {"static": 15, "saved": 60, "rest": 25}
