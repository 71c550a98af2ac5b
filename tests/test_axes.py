"""Which settings vary, how rows lie over them, and what grows: by arithmetic."""

import msgspec
import pytest

from profiler.analysis import axes
from profiler.analysis.advice import holds, samples_per_second, throughput_frontier
from profiler.analysis.axes import Space, exponent, nearest_growth
from profiler.analysis.rows import Row, rows
from profiler.core.case import Case, Choice
from profiler.core.record import Record
from tests import examples, make
from tests.make import MIB


def space(*cases: Case) -> Space:
    return axes.space(cases, {"cifar-resnet": {"depth": "3", "classes": "10"}})


def resnet(options: str = "", **fields: object) -> Case:
    return make.case(**{"model": Choice(f"cifar-resnet{options}"), **fields})


def only(*records: Record) -> list[Row]:
    return list(rows(records))


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        (  # numbers rise, and words stay in their order
            [
                make.case(batch_size=size, precision=word)
                for size, word in ((16, "fp32"), (8, "bf16"), (128, "amp-bf16"))
            ],
            {"batch_size": (8, 16, 128), "precision": ("fp32", "bf16", "amp-bf16")},
        ),
        ([resnet(":depth=7"), resnet(), resnet(":depth=19")], {"depth": (3, 7, 19)}),  # the default of what is left out
        (  # options of different models are no axes
            [resnet(":depth=7"), make.case(model=Choice("mlp:width=4")), resnet()],
            {"model": ("cifar-resnet:depth=7", "mlp:width=4", "cifar-resnet")},
        ),
        (  # nor are batch sizes, of which each has one
            [make.case(model=Choice(name), batch_size=size) for name, size in (("mlp", 8), ("cifar-resnet", 16))],
            {"model": ("mlp", "cifar-resnet")},
        ),
        ([make.case(model=Choice(f"mine:seed={seed}")) for seed in (1, 2)], {"model's seed": (1, 2)}),  # not the field
    ],
)
def test_a_setting_is_an_axis_where_it_is_not_the_same_everywhere(cases, expected):
    found = {axis.name: axis for axis in space(*cases).axes}

    assert {name: axis.values for name, axis in found.items()} == expected
    are_numbers = {name: all(isinstance(value, int) for value in values) for name, values in expected.items()}
    assert {name: axis.is_number for name, axis in found.items()} == are_numbers


CASES = [
    resnet(f":depth={depth}", batch_size=size, strategy=Choice(strategy), precision=precision)
    for depth in (3, 7, 13)
    for size in (8, 16)
    for strategy in ("none", "all", "sqrt", "every")
    for precision in ("fp32", "bf16")
]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ((), ("depth", "strategy")),
        (("batch_size",), ("batch_size", "strategy")),
        (("batch-size", "strategy"), ("batch_size", "strategy")),
        (("batch_size", "depth"), ("batch_size", "depth")),
    ],
)
def test_a_plane_is_over_what_is_named_and_the_most_that_there_is_to_see(words, chosen):
    across, up = axes.two(space(*CASES), words)

    assert (across.name, up.name) == chosen
    assert axes.rising(space(*CASES)).name == "depth"
    assert axes.rising(space(*CASES), ("batch_size",)).name == "batch_size"


SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.0, 0.0])
def test_the_exponent_of_a_power_is_found(true):
    found = nearest_growth(SIZES, [3 * size**true for size in SIZES])

    assert found is not None
    assert found.exponent == pytest.approx(true)
    assert found.at(100) == pytest.approx(3 * 100**true)
    assert nearest_growth((1, 2), (1, 2)) is None  # no power goes through fewer than three points
    assert nearest_growth((1, 2, 4), (0, 1, 2)) is None  # nothing of the first has a logarithm


@pytest.mark.parametrize(("constant", "slope"), [(100, 1), (2.5, 0.5), (50, -1)])
def test_a_constant_beside_what_is_proportional_is_found_and_makes_the_exponent_less(constant, slope):
    values = [constant + slope * size for size in SIZES]

    found = nearest_growth(SIZES, values)

    assert found is not None
    assert (found.constant, found.scale, found.exponent) == (pytest.approx(constant), pytest.approx(slope), 1)
    assert found.largest_error < 1e-6
    assert abs(exponent(SIZES, values) or 0) < 0.6


def test_what_ranks_share_falls_and_the_error_is_that_of_the_value_that_is_furthest_off():
    sizes, values = (1, 2, 4, 8), (100, 100, 140, 190)

    shared = nearest_growth((8, 64, 512, 4096), [14 + 520 / size for size in (8, 64, 512, 4096)])
    found = nearest_growth(sizes, values)

    assert shared.text() == "14 + 520/n"
    assert found.largest_error == pytest.approx(
        max(abs(found.at(x) / y - 1) for x, y in zip(sizes, values, strict=True))
    )
    assert found.text().endswith(f"\u00b1{found.largest_error * 100:.0f} %")


def test_samples_a_second_count_all_micro_batches():
    (row,) = only(make.record(case=make.case(batch_size=8, accumulate=3), seconds=(0.1, 0.2, 0.3)))
    (unknown,) = only(make.record(case=make.case(batch_size=None)))

    assert samples_per_second(row) == pytest.approx(8 * 3 / 0.2)
    assert samples_per_second(unknown) is None


def test_the_stairs_are_the_rows_that_nothing_smaller_beats_and_that_fit():
    points = {"none": (100, 0.10), "a": (80, 0.08), "b": (60, 0.12), "c": (50, 0.16), "d": (50, 0.15), "e": (120, 0.07)}
    found = only(*(make.record(name, peak=peak * MIB, seconds=(time,)) for name, (peak, time) in points.items()))
    small, large = predicted(400), predicted(401)
    out_of_memory, wrong, never_run = ("none", 64), ("sqrt", 8), ("all", 64)

    on = {(row.case.strategy, row.case.batch_size) for row in throughput_frontier(rows(examples.batches()))}

    assert [row.case.strategy for row in throughput_frontier(found)] == ["d", "b", "a", "e"]
    assert throughput_frontier([small, large]) == [small]
    assert not on & {out_of_memory, wrong, never_run}
    assert ("none", 32) in on


def predicted(peak: int, *, reserved: int | None = None, device: str = "fake:t4", limit: int | None = 1000) -> Row:
    record = make.record(peak=peak * MIB, device=device, reserved_bytes=reserved and reserved * MIB)
    environment = msgspec.structs.replace(record.environment, device_bytes=limit and limit * MIB)
    (row,) = only(msgspec.structs.replace(record, environment=environment))
    return row


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        (predicted(400), True),  # and 600 for CUDA itself
        (predicted(401), False),
        (predicted(300, reserved=401), False),
        (predicted(1001, device="fake:cpu"), False),
        (predicted(300, limit=None), None),
        (only(make.record(peak=9000 * MIB, environment=examples.ENVIRONMENT))[0], True),  # it was there
        (only(make.failed("all", "out_of_memory", ""))[0], False),
    ],
)
def test_a_device_holds_what_ran_on_it_and_of_predictions_what_is_needed(row, fits):
    assert holds(row) is fits
