"""What one rank of many would hold, with nobody else there: against the arithmetic of sharding."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from profiler.analysis.memory_fit import fits
from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core import gpu_specs
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.trace_data import BUCKETS, GATHERED, by_category
from profiler.predicting.prediction import predict
from profiler.predicting.traced_case import trace_case
from profiler.views.tables import max_batch
from profiler.views.tables.terminal import Paper
from tests import examples, make

TINY = "llama:size=tiny,sequence=16"
UNEVEN = "transformer:layers=2,width=36,heads=2,sequence=16,vocabulary=50"  # 36 and 50 cannot be cut into 8


def case(model=TINY, ranks=4, way="fsdp2", strategy="none", optimizer="adamw", device="fake:cpu"):
    return Case(
        model=Choice(model), strategy=Choice(strategy), optimizer=Choice(optimizer), batch_size=2, device=device,
        parallel=Choice(way), ranks=ranks,
    )  # fmt: skip


def parameters(model):
    """Shapes of the whole model's parameters, from one process alone."""
    alone = Case(model=Choice(model), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=2, device="fake:cpu")
    built, _, _ = trace_case(alone)
    return [tuple(parameter.shape) for parameter in built.workload.module.parameters()]


def shard_bytes(shape, ranks):
    """fp32; the first dimension is cut, and padded to a multiple of the ranks."""
    return math.ceil(shape[0] / ranks) * math.prod(shape[1:]) * 4


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks"), [(TINY, 4), (TINY, 4096), (UNEVEN, 8)])
def test_static_bytes_are_the_arithmetic_of_sharding(model, ranks):
    shapes = parameters(model)
    expected = sum(shard_bytes(shape, ranks) for shape in shapes)

    static = predict(Trial(case=case(model, ranks))).readings.static_bytes

    assert static["parameters"] == static["gradients"] == expected
    steps = 4 * len(shapes)  # Adam counts them for every parameter
    assert static["optimizer"] == 2 * expected + steps


def test_padding_is_counted():
    shapes = parameters(UNEVEN)

    padded = sum(shard_bytes(shape, 8) for shape in shapes)

    assert padded > sum(math.prod(shape) * 4 for shape in shapes) / 8


@pytest.mark.slow
def test_what_is_gathered_and_given_back_is_followed():
    _, trace, _ = trace_case(case(ranks=4))
    held = by_category(trace)[GATHERED]
    block = max(one.nbytes for one in trace.allocations if one.category == GATHERED)

    resized = [one for one in trace.allocations if one.operator == "resize"]

    assert held[0] == held[-1] == 0
    assert max(held) >= block
    assert resized
    assert {one.category for one in resized} == {GATHERED}


@pytest.mark.slow
def test_nothing_is_gathered_by_a_single_process():
    single = Case(model=Choice(TINY), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=2, device="fake:cpu")

    _, trace, _ = trace_case(single)

    assert not any(by_category(trace)[GATHERED])
    assert not any(by_category(trace)[BUCKETS])


@pytest.mark.slow
def test_the_buckets_of_ddp_are_as_large_as_the_gradients():
    static = predict(Trial(case=case(way="ddp"))).readings.static_bytes

    assert static[BUCKETS] == static["gradients"] == static["parameters"]


@pytest.mark.slow
def test_gradients_that_are_views_of_buckets_are_counted_once():
    static = predict(Trial(case=case(way="ddp:views=true"))).readings.static_bytes

    assert BUCKETS not in static
    assert static["gradients"] == static["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_checkpointing_lowers_the_peak_of_a_rank(way):
    none, every = (
        predict(Trial(case=case("llama:size=tiny,sequence=128", way=way, strategy=one))).readings
        for one in ("none", "all")
    )

    assert every.peak_bytes < none.peak_bytes
    assert every.static_bytes == none.static_bytes


@pytest.mark.slow
def test_a_foreach_optimizer_steps_on_the_parts():
    shapes = parameters(TINY)
    _, trace, _ = trace_case(case(ranks=4, device="fake:cuda"))

    made = [one for one in trace.allocations if one.phase == "optimizer"]

    largest = max(math.prod(shape) for shape in shapes) * 4
    assert made
    assert max(one.nbytes for one in made) <= -(-largest // 4 // 512) * 512


@pytest.mark.slow
def test_a_prediction_of_ranks_says_whose_it_is_and_tells_no_time():
    record = predict(Trial(case=case(ranks=64, device="fake:h100")))

    (text,) = [note.text for note in record.notes if note.code == "GCP037"]
    assert "one of 64 ranks" in text
    assert "NCCL" in text
    assert record.readings.step_seconds is None


def test_which_devices_hold_it_is_told_for_each_number_of_ranks():
    held = {2: 2**35, 8: 2**33}
    records = [make.record(case=case(ranks=ranks, device="fake:cuda"), peak=peak) for ranks, peak in held.items()]

    found = fits(rows(records), [gpu_specs.find("t4")])

    assert [(one.case.ranks, one.strategy) for one in found] == [(2, None), (8, "none")]
    assert "one of 8 ranks, fsdp2" in max_batch.fit_table(found, paper=Paper(120)).plain


@pytest.mark.slow
def test_a_run_of_ranks_is_not_explained_by_a_floor_that_is_none(tmp_path, capsys):
    record = make.record(case=make.case(model=Choice("llama"), batch_size=1, ranks=2, parallel=Choice("fsdp2")))
    run = examples.run(tmp_path / "run", [record]).folder

    assert answer(["explain", str(run)]) == 2

    assert "has no floor yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("way", "why"),
    [("ddp", "'unused.weight' gets no gradient"), ("ddp:unused=true", "reads values: it cannot be predicted")],
)
def test_what_ddp_refuses_or_reads_is_not_foreseen(way, why):
    model = Choice(f"{Path(__file__).parent / 'user_models' / 'unused.py'}:make")

    with pytest.raises(Unsupported, match=why):
        predict(Trial(case=msgspec.structs.replace(case(model, way=way), batch_size=None)))
