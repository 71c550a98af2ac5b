"""Users' models that call torch.compile: their own checkpoints, their rounding, their predictions.

The truth is PyTorch's own profiler around a plain step, without gcprof.
"""

import pytest
from torch.profiler import ProfilerActivity, profile

from profiler.core.case import Choice, Trial
from profiler.predicting.prediction import predict
from profiler.training.assemble import assemble
from profiler.training.own_checkpoints import forget, num_compiled
from tests import make
from tests.conftest import measured, notes
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
    assert ["within its compiled code" in text for text in notes(none, "GCP047")] == [True]
    assert notes(own, "GCP001") == notes(own, "GCP047") == []


@pytest.mark.slow
def test_a_compiled_model_is_estimated_as_its_code_is_written():
    """To the byte, as it runs by a backend that compiles nothing; with kernels it takes less."""
    choice = model(backend="eager")

    predicted = predict(Trial(case=make.case(model=choice, batch_size=32, device="fake:cpu", warmup=0, samples=1)))
    eager, kernels = (record("none", one).readings for one in (choice, model()))

    assert predicted.readings.peak_bytes == eager.peak_bytes >= kernels.peak_bytes
    assert predicted.readings.step_seconds is None
    assert len(notes(predicted, "GCP065")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "strategy", "is_told"),
    [("module", "all", True), ("wrapped", "segments:k=2", True), ("decorated", "all", True),
     ("blocks", "all", False), ("module", "none", False)],
)  # fmt: skip
def test_blocks_that_a_checkpoint_keeps_from_the_compiler_are_told(way, strategy, is_told):
    blocks = "_orig_mod.blocks.?" if way == "wrapped" else "blocks.?"

    made = assemble(make.case(strategy, model=model(way=way, backend=PARTITION), batch_size=32, blocks=blocks))
    before = num_compiled()
    loss = made.gradients()
    has_compiled = num_compiled() > before
    forget()

    assert loss.isfinite()
    assert ("GCP066" in {note.code for note in made.applied.notes}) == is_told
    assert has_compiled  # the rest of the model, at least
