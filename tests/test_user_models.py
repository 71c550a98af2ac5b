"""What users write runs as it stands: no base class, no decorator, no import of ours."""

from pathlib import Path

import msgspec
import pytest

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.training.assemble import assemble
from tests import make
from tests.conftest import measured

HERE = Path(__file__).parent / "user_models"
FACTORIES = {
    **dict.fromkeys(("dataclass_batch", "shared_weights", "potential", "recurrent", "segmentation"), "architectures"),
    "words": "optimizers",
    "make": "optimizers",
    "router": "data_dependent",
}
STRATEGIES = ("segments:k=2", "all", "every:k=2", "recursive", "selective:save=matmul")
REASONS = {  # why some blocks cannot be put into one segment
    "router": "the blocks do not run once each in the order of their names",
    "segmentation": "'downs.0' and 'downs.1' cannot be run together: the second takes more than the first's output",
}


def choice(name: str, **options: object) -> Choice:
    return Choice.of(f"{HERE / FACTORIES[name]}.py:{name}", options)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_strategy_gives_a_users_model_its_gradients_or_says_why_not(name):
    for strategy in STRATEGIES:
        if name in REASONS and strategy in ("segments:k=2", "recursive"):
            with pytest.raises(Unsupported, match=REASONS[name]):
                measured(choice(name), strategy, batch_size=None, passes=())
            continue

        record = measured(choice(name), strategy, batch_size=None, passes=("equality", "flops"))

        assert record.outcome == "ok", (strategy, record.detail)
        assert record.equality.gradients_equal, strategy
        assert record.equality.loss_equal, strategy
        assert record.equality.buffers_equal, strategy


def test_sparse_gradients_are_counted_and_cannot_be_foreseen():
    case = make.case(model=choice("words"), batch_size=None)

    found = measure(Trial(case=case, passes=("memory",))).readings

    values, head = 16 * 50 * 64 * 4, (50 * 64 + 1) * 4
    assert found.static_bytes["gradients"] == values + head
    assert found.static_bytes["inputs"] == 16 * 50 * 8 + 16 * 4  # which are the gradient's indices, too
    assert found.peak_bytes >= sum(found.static_bytes.values())
    with pytest.raises(Unsupported, match="only its data tell its size"):
        predict(Trial(case=msgspec.structs.replace(case, device="fake:cpu")))


@pytest.mark.parametrize("device", ["cpu", "fake:cuda"])
def test_what_optimizers_keep_in_attributes_and_what_steps_in_the_backward_are_counted(device):
    def read(factory, **options):
        case = make.case(model=Choice.of(f"{HERE}/optimizers.py:{factory}", options), batch_size=None, device=device)
        run = measure if device == "cpu" else predict
        return run(Trial(case=case, passes=("memory",))).readings

    plain, ahead = read("make", wraps=False), read("ahead")
    dropping, keeping = (read("in_backward", drops=drops).static_bytes for drops in (True, False))

    static = plain.static_bytes
    assert ahead.static_bytes["optimizer"] == static["optimizer"] + static["parameters"]
    assert ahead.peak_bytes == pytest.approx(plain.peak_bytes + static["parameters"], abs=64)  # optimizers' numbers
    assert (dropping, keeping) == ({**static, "gradients": 0}, static)


@pytest.mark.parametrize("choice", [f"{HERE}/optimizers.py:in_backward", f"{HERE}/optimizers.py:bag"])
def test_gradients_that_hooks_drop_or_that_are_sparse_are_compared_and_models_that_hooks_hold_are_let_go(choice):
    none = measured(choice, "none", batch_size=None, passes=("equality", "memory"))
    case = make.case("all", model=Choice(choice), batch_size=None)
    equal, compared = (
        measure(Trial(case=case, passes=("equality",), digests=digests)) for digests in (none.equality.digests, {})
    )

    assert none.equality.num_gradients == (7 if "bag" in choice else 8)
    assert {note.code for note in none.notes} & {"GCP014", "GCP038", "GCP045"} == set()
    assert [verdict(record) for record in (none, equal, compared)] == ["bit-equal"] * 3


@pytest.mark.parametrize(
    ("mode", "modes", "words"),
    [
        ("training", [True, True], []),
        ("partly", [False, True], ["1 of 2 dropout and BatchNorm layers are in eval mode"]),
        ("frozen", [False, True], []),
        ("switched", [False, False], ["its own checkpointing is switched on, but has no effect in eval mode"]),
    ],
)
def test_train_or_eval_is_as_the_factory_returned_it_and_is_said(mode, modes, words):
    built = assemble(make.case(model=Choice(f"{HERE / 'gradients.py'}:in_mode:mode={mode}")))

    assert [built.workload.module[index].training for index in (1, 2)] == modes
    notes = [note.text for note in built.applied.notes if note.code == "GCP043"]
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
