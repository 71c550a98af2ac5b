"""The built-in models are the published ones and save the bytes of arithmetic; what users write runs as it stands."""

from pathlib import Path

import msgspec
import pytest
import torch

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.training.assemble import assemble
from profiler.training.models import built_in
from tests import make
from tests.conftest import measured
from tests.families import FAMILIES
from tests.mnist_files import write_mnist


def test_the_mnist_cnn_at_full_size_has_92_million_parameters():
    channels, layers = 320, 100
    with torch.device("meta"):
        module = built_in.MnistCnn(channels, layers)

    first, convolution = channels * 9 + channels, channels * channels * 9 + channels
    head = 4 * channels * 10 + 10 + 10 * 10 + 10
    assert sum(p.numel() for p in module.parameters()) == first + layers * convolution + head


def test_mnist_is_read_from_idx_files(tmp_path):
    write_mnist(tmp_path / "data" / "MNIST/raw", 6)

    workload = built_in.mnist_cnn(4, str(tmp_path / "data"), channels=2)

    images, labels = workload.batch
    assert workload.data == "mnist"
    assert images.shape == (4, 1, 28, 28)
    assert images[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "layers", "parameters"), [(3, 20, 0.27e6), (9, 56, 0.85e6)])
def test_a_cifar_resnet_has_6n_plus_2_layers_and_the_papers_parameters(n, layers, parameters):
    workload = built_in.cifar_resnet(2, depth=n)

    kinds = [type(module).__name__ for module in workload.module.modules()]
    assert kinds.count("Conv2d") + kinds.count("Linear") == 6 * n + 2 == layers
    assert sum(p.numel() for p in workload.module.parameters()) == pytest.approx(parameters, rel=0.02)
    assert len(workload.blocks) == kinds.count("BasicBlock") == 3 * n


def test_a_block_of_the_transformer_has_12_width_squared_plus_13_width_parameters():
    layers, width, sequence, vocabulary = 3, 16, 8, 11
    module = built_in.transformer(
        2, layers=layers, width=width, heads=2, sequence=sequence, vocabulary=vocabulary
    ).module

    blocks = layers * (12 * width**2 + 13 * width)
    outside = vocabulary * width + sequence * width + 2 * width + width * vocabulary  # embeddings, norm, head
    assert sum(p.numel() for p in module.parameters()) == blocks + outside


def test_the_transformer_sees_no_token_before_its_time():
    torch.manual_seed(0)
    module = built_in.transformer(1, layers=2, width=16, heads=2, sequence=8, vocabulary=11, dropout=0.0).module
    tokens = torch.randint(11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 11

    difference = (module(tokens) - module(changed)).abs().amax((0, 2))  # (time,)

    assert (difference[:5] == 0).all()
    assert (difference[5:] > 0).all()


@pytest.mark.parametrize(("widths", "batch_size"), [("5", 2), ("7+1+9", 4)])
def test_a_dense_chain_leaves_its_outputs_and_the_loss_live_to_the_byte(widths, batch_size):
    record = measured(f"dense-chain:widths={widths}", "none", batch_size=batch_size)

    assert record.readings.saved_bytes == 4 * batch_size * sum(map(int, widths.split("+"))) + 4


# --- families of torchvision, timm and transformers: built, blocks found, gradients equal. All: `tests.families`


BLOCKS = {  # by the papers or the config: what each is made of
    "torchvision:googlenet": 7 + 9,  # convolutions and pools, and nine inception modules
    "torchvision:mobilenet_v3_small": 11 + 2,  # bottlenecks, first and last convolution
    "torchvision:resnet18": 8,
    "torchvision:squeezenet1_1": 8 + 5,  # fire modules; convolution, ReLU and three pools
    "hf:gpt2": 3,
    "hf:mixtral": 3,  # its experts are within
    "hf:t5": 3 + 3,
    "hf:vit": 3,
    "hf:whisper": 3 + 3,
    "timm:resnet10t": 4,
}
QUICK = ("hf:gpt2", "hf:t5", "timm:resnet10t")


def family(model: str) -> str:
    return ":".join(model.split(":")[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if family(model) in QUICK else pytest.mark.nightly, id=family(model))
        for model in (*FAMILIES, "timm:resnet10t:size=32,classes=3")
        if family(model) in BLOCKS
    ],
)
def test_a_family_is_built_its_blocks_found_and_its_gradients_are_equal(model):
    record = measured(model, "all", batch_size=2, passes=("equality", "memory"))

    assert record.outcome == "ok"
    assert record.built.num_blocks == BLOCKS[family(model)]
    assert record.equality.loss_equal
    assert record.equality.gradients_equal
    assert record.readings.saved_bytes > 0


# --- what users write: no base class, no decorator, no import of ours


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
