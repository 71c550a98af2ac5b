"""Several ranks that train one model: what each holds, how long a step takes, and whether their gradients are right."""

from pathlib import Path

import pytest

from profiler.analysis.progress import impossible
from profiler.core import device_choice
from profiler.core.case import OPERATORS, Choice, Trial
from profiler.core.errors import UserError
from profiler.measuring.meters import time
from profiler.measuring.ranks import Group
from tests import make, program
from tests.plans import written
from tests.program import PATIENCE_SECONDS, Started
from tests.scripted_steps import Scripted, step

MODELS = {
    "transformer": ("transformer:layers=4,width=32,sequence=16,vocabulary=64", 2),
    "resnet": ("torchvision:resnet18:size=32,classes=10", 2),
}
WAYS = ("ddp", "fsdp2")
STRATEGIES = ("none", "all", "plan")
FAULTY = Path(__file__).parent / "user_models" / "one_rank.py"


def case(strategy="none", model="transformer", way="ddp", **fields):
    name, size = MODELS.get(model, (model, None))
    given = {"model": Choice(name), "batch_size": size, "optimizer": Choice("adam"), "samples": 2, "warmup": 0}
    return make.case(strategy, **{**given, "parallel": Choice(way), "ranks": 2, **fields})


@pytest.fixture(scope="module")
def records(engine, tmp_path_factory):
    """Each model, trained each way by two ranks, under each strategy."""
    cases = {
        (model, way, one): case(written(one, MODELS[model][0], tmp_path_factory.mktemp(model)), model, way)
        for one in STRATEGIES
        for model in MODELS
        for way in WAYS
    }
    passes = ("equality", "memory", "time")
    trials = [Trial(case=one, passes=(*passes, *[OPERATORS] * (one == one.baseline))) for one in cases.values()]
    found = {record.case: record for record in engine.run(trials)}
    return {key: found[one] for key, one in cases.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("one", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_every_strategy_trains_with_ranks_and_has_the_gradients_of_none(records, model, way, one):
    record, readings = records[model, way, one], records[model, way, one].readings

    assert record.outcome == "ok", record.detail
    assert (record.equality.gradients_equal, record.equality.loss_equal) == (True, True)
    assert record.equality.random_state_equal
    assert "GCP055" not in {note.code for note in record.notes}
    assert one != "none" or record.equality.ranks_difference == 0.0  # to the bit those of one process: halves are exact
    assert len(readings.ranks) == 2
    assert readings.peak_bytes == max(rank.peak_bytes for rank in readings.ranks)
    assert list(impossible(record, None)) == []


@pytest.mark.nightly
def test_fsdp2_gathers_the_root_and_one_block_at_a_time_and_a_run_of_blocks_no_more(records):
    block = 4 * (12 * 32**2 + 13 * 32)
    root = 4 * (2 * 64 * 32 + 16 * 32 + 2 * 32)

    gathered = {one: records["transformer", "fsdp2", one].readings.ranks[0].gathered_bytes for one in STRATEGIES}

    assert gathered["none"] == gathered["all"] == root + block
    assert gathered["plan"] <= root + 2 * block


@pytest.mark.parametrize("fault", ["no-reduce", "sum"])
def test_gradients_that_are_not_averaged_over_the_ranks_are_found(engine, fault, monkeypatch):
    monkeypatch.setattr(engine, "entry", "tests.planted_ranks:run_trials")

    (record,) = engine.run([Trial(case=case(way=f"planted:fault={fault}"), passes=("equality",))])

    assert record.outcome == "invalid"
    assert "from the mean of those of one process with all ranks' batches" in record.detail
    assert record.equality.ranks_difference > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_micro_batches_are_averaged_over_the_ranks_once(engine, way):
    (record,) = engine.run([Trial(case=case(way=way, accumulate=3, keep_gradients=True), passes=("equality",))])

    assert record.outcome == "ok", record.detail
    assert record.equality.ranks_difference <= 4 * (record.equality.rounding_floor or 0.0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("oom", "out_of_memory", "rank 1: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("kill", "crashed", "rank 1 was killed by SIGKILL"),
    ],
)
def test_what_becomes_of_one_rank_is_the_outcome_of_the_trial(engine, fault, outcome, detail):
    (record,) = engine.run([Trial(case=case(model=f"{FAULTY}:make:fault={fault}", optimizer=Choice("sgd")))])

    assert record.outcome == outcome
    assert record.detail.startswith(detail)


@pytest.mark.nightly
def test_no_rank_outlives_a_run_that_is_killed(here, tag):
    words = ("--model", f"{FAULTY}:make:fault=hang", "--ranks", "2", "--strategies", "none", "--device", "cpu")
    with Started("run", *words, "-o", "run", cwd=here, tag=tag) as run:
        while len(program.tagged(tag)) < 5:  # the command, its server, the child that starts the ranks, and these
            continue
        run.send(9)
        run.end()

    assert program.survivors(tag, patience=PATIENCE_SECONDS) == []


@pytest.mark.parametrize(
    ("device", "ranks", "why"),
    [("cpu", 65536, "would overload this machine"), ("cuda:a100", 2, "and 1 are here"),
     ("cuda:0", 3, "each needs a device, and 2 are here")],
)  # fmt: skip
def test_more_ranks_than_devices_are_refused_before_anything_runs(device, ranks, why):
    here = ["cpu", "cuda:0", "cuda:1"]

    device_choice.refuse_crowded([case(device="cuda:0", ranks=2), case(ranks=8)], here)
    with pytest.raises(UserError, match=why, check=lambda error: error.exit_code == 3 or device == "cpu"):
        device_choice.refuse_crowded([case(device=device, ranks=ranks)], here)


def test_each_sample_is_the_slowest_ranks_and_all_begin_it_together():
    """Of two ranks, of which the other takes twice as long."""
    waits, group = [], Group()
    group.size, group.wait = 2, lambda: waits.append(1)
    group.gather = lambda found: [
        found,
        found._replace(phases={phase: 2 * seconds for phase, seconds in found.phases.items()})
        if isinstance(found, time.Sample)
        else found,
    ]

    (read,) = time.read(Scripted([2.0] * 4), step, [None], group, warmup=0, samples=3)

    assert read["step_seconds"] == (4.0, 4.0, 4.0)
    assert read["forward_seconds"] == (2.0, 2.0, 2.0)
    assert len(waits) == 4
