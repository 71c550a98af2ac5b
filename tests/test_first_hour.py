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
    [("4090", "rtx-4090"), ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"), ("a100", "a100-40"), ("h10", "h10")],
)
def test_a_gpu_is_known_by_the_words_that_people_use(word, name):
    assert gpu_specs.canonical(word) == name
    assert gpu_specs.is_known(word) == (name in gpu_specs.names())


def test_a_model_is_known_by_its_own_name_where_one_family_has_it_and_a_strategy_as_tables_print_it():
    assert levers.resolved(Choice("first(3)+fused")) == "first:n=3+fused"
    assert meant(Choice("gpt2")) == "hf:gpt2"
    assert meant(Choice("GPT-2:sequence=32")) == "hf:gpt2:sequence=32"
    assert meant(Choice("train.py::make:depth=2")) == "train.py:make:depth=2"
    with pytest.raises(UserError, match="several models are called 'resnet50'") as refused:
        meant(Choice("resnet50"))
    assert refused.value.hint == "did you mean 'torchvision:resnet50' or 'timm:resnet50'?"


def test_a_run_stands_for_its_model_and_settings(here):
    record = make.record()
    examples.run(here / "results" / "20261120T174900Z-mlp-3fa9c1", [record])

    words = words_of("3fa9c1")

    assert [is_run(word) for word in ("3fa9c1", "20261120T1749", "last", "mlp", "4090")] == [True] * 3 + [False] * 2
    assert words["model"] == record.case.model
    assert words["batch_size"] == str(record.case.batch_size)
    assert words["precision"] == record.case.precision


@pytest.mark.usefixtures("shared")
def test_a_prediction_is_quiet_and_kept_only_if_asked_and_the_folder_ignores_itself(here, capsys):
    assert answer([*PREDICT, "-q"]) == 0
    said = capsys.readouterr()
    assert ("all" in said.out, "next: " in said.err) == (True, False)
    assert list(here.iterdir()) == []

    assert answer([*PREDICT, "--keep"]) == 0
    (folder,) = runs(Path("results"))
    assert Path("results/.gitignore").read_text() == "*\n"

    store.remove(folder)
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_look_at_a_model_that_fails_leaves_nothing_and_names_no_folder(here, capsys):
    (here / "bad.py").write_text("def make():\n    raise ValueError('no')\n")

    assert answer(["predict", "bad.py:make", "--strategies", "all", "--json"]) == 1

    assert json.loads(capsys.readouterr().out)["run"] is None
    assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["bad.py"]
