"""What one rank of many holds, rehearsed with nobody else there: against the arithmetic of sharding."""

import math

import pytest

from profiler.cli import answer
from profiler.core.case import Case, Choice, Trial
from profiler.core.schedule import REHEARSED_PASSES
from profiler.core.trace_data import BUCKETS
from tests import examples, make
from tests.pasted import named

GRANULE = 512  # bytes: what PyTorch's allocator rounds up to
TINY = "llama:size=tiny,sequence=16"
UNEVEN = "transformer:layers=2,width=36,heads=2,sequence=16,vocabulary=50"  # 36 and 50 cannot be cut into 8


@pytest.fixture(scope="module")
def rehearsed(hollow, engine):
    def run(model=TINY, ranks=4, way="fsdp2", memory=""):
        case = Case(
            model=Choice(model), strategy=Choice("none"), optimizer=Choice("adamw"), batch_size=2,
            device=f"rehearse:h100{memory}", parallel=Choice(way), ranks=ranks,
        )  # fmt: skip
        return next(iter(engine.run([Trial(case=case, passes=REHEARSED_PASSES)])))

    return run


def shard_bytes(shape, ranks):
    """fp32; the first dimension is cut, and padded to a multiple of the ranks; in a block of its own."""
    nbytes = math.ceil(shape[0] / ranks) * math.prod(shape[1:]) * 4
    return -(-nbytes // GRANULE) * GRANULE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ranks"), [*(pytest.param(TINY, ranks, marks=pytest.mark.nightly) for ranks in (4, 4096)), (UNEVEN, 8)]
)
def test_static_bytes_are_the_arithmetic_of_sharding(rehearsed, model, ranks):
    shapes = [tuple(parameter.shape) for parameter in named(model).module.parameters()]
    expected = sum(shard_bytes(shape, ranks) for shape in shapes)

    record = rehearsed(model, ranks)

    static = record.readings.static_bytes
    assert [f"{ranks} ranks" in note.text for note in record.notes if note.code == "GCP037"] == [True]
    assert static["parameters"] == expected
    assert static["optimizer"] == 2 * expected  # Adam counts its steps on the host


@pytest.mark.slow
def test_gradients_that_are_views_of_buckets_are_counted_once(rehearsed):
    apart, views = (rehearsed(way=way).readings.static_bytes for way in ("ddp", "ddp:views=true"))

    assert abs(apart[BUCKETS] - apart["gradients"]) <= GRANULE * len(list(named(TINY).module.parameters()))
    assert views[BUCKETS] == 0


@pytest.mark.nightly
def test_a_model_that_fits_only_in_shards_is_sharded_before_its_storages_are_made(rehearsed):
    large = "transformer:layers=8,sequence=8,width=1024", 64
    whole = rehearsed(*large)

    memory = f":memory={whole.built.num_parameters * 4 * 3 // 4}"
    small, unsharded = (rehearsed(*large, way, memory) for way in ("fsdp2", "ddp"))

    assert (small.outcome, unsharded.outcome) == ("ok", "out_of_memory"), small.detail
    for reading in ("static_bytes", "peak_bytes"):
        assert getattr(small.readings, reading) == getattr(whole.readings, reading)


def test_an_estimate_refuses_ranks_and_no_floor_explains_them(tmp_path, capsys):
    record = make.record(case=make.case(model=Choice("llama"), batch_size=1, ranks=2, parallel=Choice("fsdp2")))
    run = examples.run(tmp_path / "run", [record]).folder

    assert answer(["predict", "mlp", "--ranks", "2", "--device", "cpu"]) == 2
    assert "rehearsed, not estimated" in capsys.readouterr().err
    assert answer(["explain", str(run)]) == 2
    assert "has no floor yet" in capsys.readouterr().err
