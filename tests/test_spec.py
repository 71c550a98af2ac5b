"""Words -> checked cases, devices that are named by the kind of GPU, and every refusal."""

from pathlib import Path

import pytest
import torch
from msgspec import UNSET

from profiler.analysis.rows import rows
from profiler.core import catalogue
from profiler.core.device_choice import choose_device
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse
from profiler.core.record import Environment, Record
from profiler.core.schedule import in_rounds
from profiler.core.stats import Sampling
from profiler.workflows import spec
from profiler.workflows.spec import CheckedRequest, Request, check, strategies_of
from tests import make
from tests.gpu_records import NOTES

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


def planned(device: str = "cpu", **words) -> CheckedRequest:
    return check(Request(**words), lambda word: device)


def test_on_a_cpu_the_default_is_smaller_and_says_so():
    found = planned()

    assert {trial.case.model for trial in found.trials} == {"mnist-cnn:channels=32"}
    assert found.remarks[0].endswith("say mnist-cnn:channels=320")


@pytest.mark.parametrize(
    ("rounds", "other", "sampling", "pairs"),
    [
        (3, "all", Sampling(), [1, 3, 3]),
        (2, "all", Sampling(), [UNSET, UNSET]),
        (3, "all", UNSET, [UNSET] * 3),
        (3, "compile-budget", Sampling(), [UNSET] * 3),  # whose ratios are of the medians of rounds
    ],
)
def test_the_first_of_three_rounds_is_a_look_and_the_others_take_enough_pairs_for_an_interval(
    rounds, other, sampling, pairs
):
    trials = in_rounds([make.case(name, sampling=sampling) for name in ("none", other)], rounds)

    assert [trial.least_pairs for trial in trials if trial.case.strategy == "none"] == pairs


@pytest.mark.parametrize(
    ("words", "strategies"),
    [
        ({"strategies": "none", "segments": "8,1..3,2,1..32:x2"}, [8, 1, 2, 3, 4, 16, 32]),
        ({"model": "mlp,mnist-cnn"}, [1, 2, 4, 8, 16, 32]),  # chains are cut into segments
        ({"model": "mlp,transformer"}, ["sqrt", "all", "selective"]),
    ],
)
def test_strategies_stand_in_order_and_once_behind_the_baseline(words, strategies):
    expected = [f"segments:k={one}" if isinstance(one, int) else one for one in strategies]

    assert list(map(str, strategies_of(Request(**words)))) == ["none", *expected]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"strategies": "segments:k=two"}, "k=two"),
        ({"data": "/"}, "'/' holds no MNIST files"),
        ({"model": "mlp:width=1,width=2"}, "gives width twice"),
        ({"optimizer": "sgd:lr=nan"}, "lr=nan"),
        ({"segments": "1..4:x" + "9" * 5000}, "--segments"),
    ],
)
def test_a_bad_word_gets_one_line_that_names_it(words, named):
    with pytest.raises(UserError, match=named, check=lambda error: "\n" not in error.message and error.exit_code == 2):
        planned(**words)


def test_a_word_for_a_device_is_the_first_of_its_kind():
    assert choose_device("auto", ["cpu"]) == "cpu"
    assert {choose_device(word, ["cpu", "cuda:0", "cuda:1"]) for word in ("auto", "cuda")} == {"cuda:0"}


def test_the_optimizers_of_torch_that_are_read_from_its_source_are_those_that_it_has():
    kinds = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)} - {"Optimizer"}

    assert set(catalogue.classes("torch.optim")) - {"Optimizer"} == kinds


def test_every_list_is_an_axis():
    words = {"accumulate": "1,2", "batch_size": "8,16", "precision": "fp32,bf16", "optimizer": "sgd,adam"}

    found = [trial.case for trial in planned("fake:h100", model="mlp:depth=2|4", strategies="all", **words).trials]

    assert len(found) == len(set(found)) == 2**6
    assert {(case.accumulate, case.batch_size, case.precision) for case in found} == {
        (accumulate, size, precision) for accumulate in (1, 2) for size in (8, 16) for precision in ("fp32", "bf16")
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_a_plan(path):
    assert check(spec.read_sweep(path), lambda word: "cuda:0").trials


def test_a_gpu_is_of_the_kind_that_its_name_holds_as_words_and_a_prediction_is_the_twin_of_its_own_kind_alone():
    assert parse("cuda:rtx-3090").accepts("NVIDIA GeForce RTX 3090")
    assert not parse("cuda:l4").accepts("NVIDIA L40S")
    twins = {device: make.case(device=device).twin.device for device in ("cuda:a100", "fake:cuda:a100", "cuda:t4")}

    assert twins == {"cuda:a100": "cuda:a100", "fake:cuda:a100": "cuda:a100", "cuda:t4": "cuda:t4"}
    assert {make.case(device=device).twin.device for device in ("cuda:0", "cuda:7", "fake:t4", "cuda")} == {"cuda"}


def test_a_ratio_of_two_gpus_of_a_kind_says_so():
    def on(uuid: str, strategy: str, round: int) -> Record:
        environment = Environment(gcprof="0.1.0", python="3.11", system="Linux", device_uuid=uuid)
        return make.record(strategy, device="cuda:a100", round=round, environment=environment, seconds=(0.1,) * 6)

    run = [on("GPU-1", "none", round) for round in (1, 2, 3)]
    run += [on(uuid, "all", round) for round, uuid in enumerate(("GPU-1", "GPU-2", "GPU-1"), start=1)]

    none, everything = rows(run)

    (note,) = [note for note in everything.notes if note.code == "GCP036"]
    assert note.text in NOTES
    assert "GCP036" not in {note.code for note in none.notes}
