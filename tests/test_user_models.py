"""What users write runs as it stands: no base class, no decorator, no import of ours."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.training.assemble import assemble
from profiler.training.models import user
from tests import make
from tests.conftest import measured

HERE = Path(__file__).parent / "user_models"
MODES = HERE / "modes.py"
FACTORIES = {
    "dataclass_batch": "make",
    "tuple_output": "create",
    "extra_arguments": "decoder",
    "shared_weights": "factory",
    "lora": "finetune",
    "batchnorm": "build",
    "dropout": "net",
    "forces": "potential",
    "lstm": "char_rnn",
    "sparse": "words",
    "data_dependent": "router",
    "unet": "segmentation",
    "wrapped_optimizers": "make",
}
STRATEGIES = ("segments:k=2", "all", "every:k=2", "recursive", "selective:save=matmul")
REASONS = {  # why some blocks cannot be put into one segment
    "data_dependent": "the blocks do not run once each in the order of their names",
    "unet": "'downs.0' and 'downs.1' cannot be run together: the second takes more than the first's output",
}


def choice(name: str, **options: object) -> Choice:
    return Choice.of(f"{HERE / name}.py:{FACTORIES[name]}", options)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_strategy_gives_a_users_model_its_gradients_or_says_why_not(name):
    digests = measured(choice(name), "none", batch_size=None, passes=("equality",)).equality.digests
    for strategy in STRATEGIES:
        case = make.case(strategy, model=choice(name), batch_size=None)
        if name in REASONS and strategy in ("segments:k=2", "recursive"):
            with pytest.raises(Unsupported, match=REASONS[name]):
                measure(Trial(case=case, passes=()))
            continue

        record = measure(Trial(case=case, passes=("equality", "flops"), digests=digests))

        assert record.outcome == "ok", (strategy, record.detail)
        assert record.equality.gradients_equal, strategy
        assert record.equality.loss_equal, strategy
        assert record.equality.buffers_equal == (name != "batchnorm"), strategy


def test_sparse_gradients_are_counted_and_cannot_be_foreseen():
    case = make.case(model=choice("sparse"), batch_size=None)

    found = measure(Trial(case=case, passes=("memory",))).readings

    values, head = 16 * 50 * 64 * 4, (50 * 64 + 1) * 4
    assert found.static_bytes["gradients"] == values + head
    assert found.static_bytes["inputs"] == 16 * 50 * 8 + 16 * 4  # which are the gradient's indices, too
    assert found.peak_bytes >= sum(found.static_bytes.values())
    with pytest.raises(Unsupported, match="only its data tell its size"):
        predict(Trial(case=msgspec.structs.replace(case, device="fake:cpu")))


def test_an_optimizer_that_takes_sparse_gradients_alone_gets_them_and_cannot_be_foreseen():
    bag = Choice(f"{HERE / 'sparse.py'}:bag")
    none = measured(bag, "none", batch_size=None, passes=("equality",))
    case = make.case("all", model=bag, batch_size=None)

    equal = measure(Trial(case=case, passes=("equality",), digests=none.equality.digests))
    compared = measure(Trial(case=case, passes=("equality",), digests={}))

    assert [record.outcome for record in (none, equal, compared)] == ["ok"] * 3
    assert (none.equality.noise_floor, none.equality.num_gradients) == (0.0, 7)
    assert equal.equality.gradients_equal
    assert compared.equality.gradients_equal
    with pytest.raises(Unsupported, match="only its data tell its size"):
        predict(Trial(case=msgspec.structs.replace(case, device="fake:cpu")))


@pytest.mark.parametrize("order", [lambda logits, loss: (logits, loss), lambda logits, loss: (loss, logits)])
def test_the_scalar_of_a_tuple_is_the_loss_wherever_it_stands(order):
    """As of nanoGPT, which returns (logits, loss)."""

    class Head(nn.Linear):
        def forward(self, x):
            logits = super().forward(x)
            return order(logits, logits.square().mean())

    head, x = Head(4, 4), torch.ones(2, 4)

    loss = user.as_workload((head, x)).loss(head, x)

    assert torch.equal(loss, nn.functional.linear(x, head.weight, head.bias).square().mean())


def test_a_segment_of_a_users_loop_saves_its_input_alone():
    none, half = (measured(choice("tuple_output"), s, batch_size=None).readings for s in ("none", "segments:k=2"))
    batch, width, size = 16, 24, 4
    of_a_layer = batch * (width + 2 + 2 * width) * size  # normed, mean and rstd, ReLU's result
    between_layers = batch * width * size  # the residual sum

    # a checkpoint keeps its input, which is the batch here, and the random state, which is 5056 bytes on the CPU
    assert none.saved_bytes - half.saved_bytes == 3 * of_a_layer + 2 * between_layers - 5056


@pytest.mark.parametrize("device", ["cpu", "fake:cpu", "fake:cuda"])
def test_what_an_optimizer_keeps_in_an_attribute_is_counted(device):
    plain = read(choice("wrapped_optimizers", wraps=False), device).readings
    ahead = read(Choice(f"{HERE}/wrapped_optimizers.py:ahead"), device).readings

    slow_bytes = plain.static_bytes["parameters"]
    assert ahead.static_bytes["optimizer"] == plain.static_bytes["optimizer"] + slow_bytes
    assert ahead.peak_bytes == pytest.approx(plain.peak_bytes + slow_bytes, abs=64)  # numbers of the optimizers


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("device", ["cpu", "fake:cpu", "fake:cuda"])
def test_optimizers_that_step_in_the_backward_are_counted(device, drops):
    plain = read(choice("wrapped_optimizers", wraps=False), device).readings.static_bytes
    model = Choice.of(f"{HERE}/wrapped_optimizers.py:in_backward", {"drops": drops})

    readings = read(model, device).readings

    gradient_bytes = 0 if drops else plain["gradients"]
    assert readings.static_bytes == {**plain, "gradients": gradient_bytes}


def test_gradients_that_hooks_drop_are_compared_and_models_that_hooks_hold_are_let_go():
    model = Choice(f"{HERE}/wrapped_optimizers.py:in_backward")

    none = measured(model, "none", batch_size=None, passes=("equality", "memory"))
    case = make.case("all", model=model, batch_size=None)
    digests = none.equality.digests | {"gradients": "0"}
    record = measure(Trial(case=case, passes=("equality",), digests=digests))

    assert none.equality.num_gradients == 8
    assert {note.code for note in none.notes} & {"GCP014", "GCP038", "GCP045"} == set()
    assert (verdict(none), verdict(record)) == ("bit-equal", "bit-equal")  # where digests differ, all is compared


def read(model, device):
    if device == "cpu":
        return measured(model, "none", batch_size=None, passes=("memory",))
    return predict(Trial(case=make.case(model=model, batch_size=None, device=device)))


def test_all_tensors_of_a_batch_of_dataclasses_are_counted_and_what_they_worked_out_is_kept():
    """Three tensors, of which `doubled` is no argument and `halved` no field."""
    nested = choice("dataclass_batch").replace(":make", ":nested")

    none, every = (
        measured(nested, strategy, batch_size=4, passes=("equality", "memory")) for strategy in ("none", "all")
    )

    assert none.readings.static_bytes["inputs"] == every.readings.static_bytes["inputs"] == 3 * 4 * 8 * 4
    assert (none.outcome, every.outcome, every.equality.loss_equal) == ("ok", "ok", True)


@pytest.mark.parametrize(
    ("factory", "modes", "words"),
    [
        ("training", [True, True], None),
        ("evaluating", [False, False], "2 of 2 dropout and BatchNorm layers are in eval mode"),
        ("partly", [False, True], "1 of 2 dropout and BatchNorm layers are in eval mode"),
        ("frozen", [False, True], None),
        ("switched", [False, False], "its own checkpointing is switched on, but has no effect in eval mode"),
    ],
)
def test_train_or_eval_is_as_the_factory_returned_it_and_is_said(factory, modes, words):
    built = assemble(make.case(model=Choice(f"{MODES}:{factory}")))
    notes = [note.text for note in built.applied.notes if note.code == "GCP043"]

    assert [built.workload.module.layers[index].training for index in (1, 2)] == modes
    assert [words in note for note in notes] == [True] if words else notes == []
