"""The built-in models are the published ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from profiler.core.case import Choice
from profiler.core.errors import Unsupported
from profiler.training.models import built_in
from tests.conftest import measured
from tests.mnist_files import write_mnist


@pytest.mark.slow
def test_the_mlp_is_10_20_20_5_with_relu_between():
    module = built_in.mlp().module

    assert [(layer.in_features, layer.out_features) for layer in module.children() if isinstance(layer, nn.Linear)] == [
        (10, 20),
        (20, 20),
        (20, 5),
    ]
    assert [type(layer) for layer in module.children()] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_the_mlp_takes_its_sizes():
    module = built_in.mlp(2, width=7, depth=4, features=3, classes=2).module

    assert [layer.out_features for layer in module.children() if isinstance(layer, nn.Linear)] == [7, 7, 7, 2]


def test_the_trunk_of_the_mnist_cnn_has_301_modules_and_ends_at_2_by_2():
    workload = built_in.mnist_cnn(2, channels=4)

    assert len(workload.blocks) == 301
    assert workload.module.trunk(workload.batch[0]).shape == (2, 4, 2, 2)
    assert workload.module(workload.batch[0]).shape == (2, 10)


def test_the_mnist_cnn_at_full_size_has_92_million_parameters():
    channels, layers = 320, 100
    with torch.device("meta"):
        module = built_in.MnistCnn(channels, layers)

    first, convolution = channels * 9 + channels, channels * channels * 9 + channels
    head = 4 * channels * 10 + 10 + 10 * 10 + 10
    assert sum(p.numel() for p in module.parameters()) == first + layers * convolution + head


def test_too_few_layers_are_unsupported():
    with pytest.raises(Unsupported, match="at least 5 layers"):
        built_in.mnist_cnn(2, channels=4, layers=4)


@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_mnist_is_read_from_idx_files(tmp_path, below):
    write_mnist(tmp_path / "data" / below, 6)

    workload = built_in.mnist_cnn(4, str(tmp_path / "data"), channels=2)

    images, labels = workload.batch
    assert workload.data == "mnist"
    assert images.shape == (4, 1, 28, 28)
    assert images[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    assert labels.tolist() == [0, 1, 2, 3]


def test_a_folder_without_the_files_is_unsupported_and_nothing_is_downloaded(tmp_path):
    with pytest.raises(Unsupported, match="no MNIST files"):
        built_in.mnist_cnn(4, str(tmp_path), channels=2)

    assert list(tmp_path.iterdir()) == []


def test_fewer_images_than_the_batch_are_unsupported(tmp_path):
    write_mnist(tmp_path / "data", 3)

    with pytest.raises(Unsupported, match="hold 3 images, fewer than the batch of 4"):
        built_in.mnist_cnn(4, str(tmp_path / "data"), channels=2)


def test_the_record_says_which_data_it_was(tmp_path):
    assert measured("mnist-cnn:channels=2", "none", passes=()).built.data == "synthetic"


def test_one_seed_gives_one_batch_and_one_set_of_weights():
    built = []
    for _ in range(2):
        torch.manual_seed(3)
        built.append(built_in.mlp(4))

    assert torch.equal(built[0].batch[0], built[1].batch[0])
    assert torch.equal(built[0].module[0].weight, built[1].module[0].weight)


@pytest.mark.parametrize("name", ["RAdam", "Adagrad", "RMSprop"])
def test_optimizers_of_torch_are_taken_by_name_and_their_state_is_counted(name):
    parameters = 4 * (10 * 20 + 20 + 20 * 20 + 20 + 20 * 5 + 5)

    static = measured("mlp", "none", optimizer=Choice(f"torch:{name}")).readings.static_bytes

    assert static["optimizer"] >= parameters


def test_an_optimizer_that_torch_does_not_have_names_the_nearest():
    from profiler.training.optimizers.torch_optim import build

    with pytest.raises(Unsupported, match="did you mean RAdam"):
        build([], "RAdan")
