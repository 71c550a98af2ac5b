"""What a first hour needs: words as one guesses them, nothing left behind that was not asked for, and quiet."""

import json
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.runs import is_run, runs, store
from profiler.training import levers
from profiler.training.models import meant
from profiler.workflows.consent import words_of
from tests import examples, make

PREDICT = ["predict", "mlp", "--strategies", "all", "--device", "cpu"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("4090", "rtx-4090"), ("RTX 4090", "rtx-4090"), ("rtx4090", "rtx-4090"), ("2080ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("a100", "a100-40"), ("A100-80", "a100-80"), ("H100", "h100"),
        ("h10", "h10"),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_words_that_people_use(word, name):
    assert gpu_specs.canonical(word) == name
    assert gpu_specs.is_known(word) == (name in gpu_specs.names())


def test_a_model_is_known_by_its_own_name_where_one_family_has_it(here):
    assert meant(Choice("gpt2")) == "hf:gpt2"
    assert meant(Choice("GPT-2:sequence=32")) == "hf:gpt2:sequence=32"
    assert meant(Choice("train.py::make:depth=2")) == "train.py:make:depth=2"
    assert meant(Choice("mlp")) == "mlp"
    with pytest.raises(UserError, match="several models are called 'resnet50'") as refused:
        meant(Choice("resnet50"))
    assert refused.value.hint == "did you mean 'torchvision:resnet50' or 'timm:resnet50'?"


def test_a_strategy_is_known_as_tables_print_it():
    assert levers.resolved(Choice("uniform(5)")) == "segments:k=5"
    assert levers.resolved(Choice("first(3)+fused")) == "first:n=3+fused"


def test_a_run_stands_for_its_model_and_settings(here):
    record = make.record()
    examples.run(here / "results" / "20261120T174900Z-mlp-3fa9c1", [record])

    words = words_of("3fa9c1")

    assert [is_run(word) for word in ("3fa9c1", "20261120T1749", "last", "mlp", "4090")] == [True] * 3 + [False] * 2
    assert words["model"] == record.case.model
    assert words["batch_size"] == str(record.case.batch_size)
    assert words["precision"] == record.case.precision


@pytest.mark.usefixtures("shared")
def test_a_prediction_is_kept_only_if_asked_and_the_folder_ignores_itself(here):
    assert answer(PREDICT) == 0
    assert list(here.iterdir()) == []

    assert answer([*PREDICT, "--keep"]) == 0
    (folder,) = runs(Path("results"))
    assert Path("results/.gitignore").read_text() == "*\n"

    store.remove(folder)
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("shared")
def test_quiet_prints_the_table_alone(here, capsys):
    assert answer([*PREDICT, "-q"]) == 0

    out, err = capsys.readouterr()
    assert "all" in out
    assert [line for line in err.splitlines() if line.startswith(("next: ", "wrote ", "note: "))] == []


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("command", ["rehearse", "predict"])
def test_a_look_at_a_model_that_fails_leaves_nothing_and_names_no_folder(command, here, capsys):
    (here / "bad.py").write_text("def make():\n    raise ValueError('no')\n")

    assert answer([command, "bad.py:make", "--strategies", "all", "--json"]) == 1

    assert json.loads(capsys.readouterr().out)["run"] is None
    assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["bad.py"]
