"""Users' models that call torch.compile: their own checkpoints, their rounding, their predictions.

The truth is PyTorch's own profiler around a plain step, without gcprof.
"""

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.bench import Bench
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from profiler.training.assemble import assemble
from profiler.training.own_checkpoints import forget, num_compiled
from tests import make
from tests.conftest import measured
from tests.user_models import compiled

PARTITION = "aot_eager_decomp_partition"  # Inductor's choice of what is saved, without a C++ compiler
WAYS = {
    "module": {"backend": PARTITION},
    "wrapped": {"backend": PARTITION},
    "blocks": {"backend": PARTITION},
    "decorated": {},
}


def model(factory="make", **options):
    return Choice.of(f"{compiled.__file__}:{factory}", options)


def record(strategy, choice, **fields):
    return measured(str(choice), strategy, batch_size=32, **fields)


def saved_by_pytorch(make_model, **options):
    """Bytes that a plain forward leaves, after one step that compiles."""
    forget()
    net, batch = make_model(**options)
    net(batch).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = net(batch)
    forget()
    assert loss.requires_grad
    return sum(event.self_cpu_memory_usage for event in seen.key_averages())


def codes(record):
    return {note.code for note in record.notes}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [way if way in ("module", "blocks") else pytest.param(way, marks=pytest.mark.nightly) for way in WAYS]
)
def test_checkpoints_in_compiled_code_are_off_but_under_own(way):
    options = {"way": way, **WAYS[way]}
    plain, checkpointed = (saved_by_pytorch(compiled.make, own=own, **options) for own in (False, True))

    none, own = (record(strategy, model(own=True, **options)) for strategy in ("none", "own"))

    assert checkpointed < plain / 4
    assert (none.readings.saved_bytes, own.readings.saved_bytes) == (plain, checkpointed)
    assert ["within its compiled code" in note.text for note in none.notes if note.code == "GCP047"] == [True]
    assert codes(own) & {"GCP001", "GCP047"} == set()


@pytest.mark.slow
def test_the_step_without_them_is_not_taken_from_code_that_has_them():
    case = make.case("own", model=model(backend=PARTITION, own=True), batch_size=32, warmup=0, samples=2)

    read, plain = (
        measure(Trial(case=msgspec.structs.replace(case, model=choice), passes=("time",))).readings
        for choice in (case.model, model(backend=PARTITION, own=True, breaks=True))
    )

    assert not read.plain_step_seconds
    assert plain.plain_step_seconds


def test_each_pass_compiles_anew_and_only_what_was_compiled(monkeypatch):
    record("none", model(backend=PARTITION))
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    bench = Bench(Trial(case=make.case()), lambda name: None)

    bench.begin("memory")
    monkeypatch.setattr("profiler.training.own_checkpoints.COUNTERS", "not imported")
    bench.begin("time")

    assert len(resets) == 1
    assert num_compiled() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "expected"), [pytest.param("module", "within noise", marks=pytest.mark.nightly), ("blocks", "bit-equal")]
)
def test_other_kernels_of_a_compiled_model_may_round_otherwise(way, expected):
    result = record("all", model(way=way, backend=PARTITION), passes=("equality",))

    assert (result.outcome, verdict(result)) == ("ok", expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["module", pytest.param("graphs", marks=pytest.mark.nightly)])
def test_a_compiled_model_is_estimated_as_its_code_is_written(way):
    """To the byte, as it runs by a backend that compiles nothing; with kernels it takes less."""
    choice = model(way=way, backend="eager")
    case = make.case(model=choice, batch_size=32, device="fake:cpu", warmup=0, samples=1)

    predicted = predict(Trial(case=case))
    eager, kernels = (record("none", one).readings for one in (choice, model(way=way)))

    assert predicted.readings.peak_bytes == eager.peak_bytes >= kernels.peak_bytes
    assert predicted.readings.step_seconds is None
    assert "GCP065" in codes(predicted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "strategy", "is_told"),
    [("module", "all", True), ("wrapped", "segments:k=2", True), ("decorated", "all", True),
     ("blocks", "all", False), ("module", "none", False)],
)  # fmt: skip
def test_blocks_that_a_checkpoint_keeps_from_the_compiler_are_told(way, strategy, is_told):
    blocks = "_orig_mod.blocks.?" if way == "wrapped" else "blocks.?"
    case = make.case(strategy, model=model(way=way, backend=PARTITION), batch_size=32, blocks=blocks)

    made = assemble(case)
    before = num_compiled()
    loss = made.gradients()
    has_compiled = num_compiled() > before
    forget()

    assert loss.isfinite()
    assert ("GCP066" in {note.code for note in made.applied.notes}) == is_told
    assert has_compiled  # the rest of the model, at least


@pytest.mark.slow
def test_a_plan_is_for_blocks_that_are_not_compiled_with_what_is_around_them():
    def stages_of(way):
        choice = model(way=way, backend=PARTITION)
        return stages(Trial(case=make.case(model=choice, batch_size=32, device="fake:cpu"), passes=("memory",))).stages

    assert len(stages_of("blocks")) >= 4
    for way in ("module", "wrapped"):
        with pytest.raises(Unsupported, match="compile each block instead"):
            stages_of(way)
