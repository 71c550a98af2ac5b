"""What is typed on a first day is understood, or told in one line with a hint that works, and leaves nothing behind."""

import shlex
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.cli.options import understood
from profiler.cli.output import split_script
from profiler.core import gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.runs import runs, store
from profiler.training import resolved_label
from profiler.training.models import meant
from tests import examples, make

TRAIN = """
import torch

class GPT(torch.nn.Module):
    pass

def make(batch_size=4):
    return GPT(), torch.randn(batch_size, 4)

def collate(samples):
    return samples, len(samples)

print(make())
"""
MISTAKES = {  # what is typed -> what is said, or the hint
    "fit train.py --memory 1GiB --device t4": "hint: gcprof fit --memory 1GiB --device t4 -- python train.py\n",
    "train.py --epochs 3": "hint: gcprof rehearse -- python train.py --epochs 3\n",
    "explain mlp:wdth=3": "did you mean 'mlp:width=3'?",
    "explain model:GPT": "name the function that makes it with its batch: model:make\n",
    "explain loop.py:make": "hint: gcprof rehearse -- python loop.py runs it as it is; or write a function",
    "run mlp --device h100": "--device fake:h100 predicts for it, --device rehearse:h100 rehearses it",
    "blocks train.py": "name it: train.py:make\n",  # which is not imported
    "predict mlp --memory 1GiB": "gcprof fit MODEL --memory SIZE",
    "run mlp --gpus 0,1": "--gpus: '0' is not a kind of GPU",
    "run mlp --device fake:cuda --predict": "predict has no effect on 'fake:cuda'",
    "run mlp --device rehearse:h100 --engine ray": "--engine ray does not rehearse",
}
UNDERSTOOD = {
    "explain mlp --amp --gpu t4": "explain mlp --precision amp-bf16 --device t4",
    "run mlp --mixed_precision=no": "run mlp --precision=fp32",
    "plan mlp --memory 8GiB": "plan mlp --budget 8GiB",
    "fit mlp --memory 8GiB": "fit mlp --memory 8GiB",  # ours stay
}


@pytest.fixture
def folder(here: Path) -> Path:
    for name in ("train.py", "model.py"):
        (here / name).write_text(TRAIN)
    (here / "loop.py").write_text("import torch\nfor _ in range(3):\n    x = torch.randn(2, 4)\n")
    examples.run(here / "results" / "20261120T174900Z-mlp-3fa9c1", [make.record()])
    return here


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_told_in_one_line_with_a_hint_before_anything_starts(typed, folder, no_server, capsys):
    before = sorted(folder.rglob("*"))

    code = answer(shlex.split(typed))

    printed = capsys.readouterr()
    assert code in (2, 4)
    assert [line.partition(": ")[0] for line in printed.err.splitlines()] == ["gcprof", "hint"]
    assert MISTAKES[typed] in printed.err
    assert printed.out == ""
    assert sorted(folder.rglob("*")) == before


def test_options_as_other_tools_call_them_are_ours():
    for typed, ours in UNDERSTOOD.items():
        assert understood(typed.split()) == ours.split()


@pytest.mark.parametrize(
    "words", ["run", "rehearse", "explain", "timeline", "plan --budget max", "stages", "fit --memory 1GiB", "blocks"]
)
def test_every_command_with_a_model_takes_it_as_its_first_word_or_by_its_flag(words, here, capsys):
    for model in (["transfromer"], ["--model", "transfromer"]):
        assert answer([*words.split(), *model]) == 2
        assert "did you mean 'transformer'?" in capsys.readouterr().err
    assert answer([*words.split(), "mlp", "--model", "mlp"]) == 2


@pytest.mark.parametrize("dashes", [["--", "python"], ["python"], []])
def test_the_kind_of_code_is_not_taken_for_the_command(dashes):
    own = ["fit", "--memory", "8GiB", "--emit", "python"]

    assert split_script([*own, *dashes, "train.py"]) == (own, ["python", "train.py"])


PREDICT = ["predict", "mlp", "--strategies", "all", "--device", "cpu"]


@pytest.mark.parametrize(
    ("word", "name"),
    [("4090", "rtx-4090"), ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"), ("a100", "a100-40"), ("h10", "h10")],
)
def test_a_gpu_is_known_by_the_words_that_people_use(word, name):
    assert gpu_specs.canonical(word) == name
    assert gpu_specs.is_known(word) == (name in gpu_specs.names())


def test_a_model_is_known_by_its_own_name_where_one_family_has_it_and_a_strategy_as_tables_print_it():
    assert resolved_label(Choice("first(3)+fused")) == "first:n=3+fused"
    assert meant(Choice("gpt2")) == "hf:gpt2"
    assert meant(Choice("GPT-2:sequence=32")) == "hf:gpt2:sequence=32"
    assert meant(Choice("train.py::make:depth=2")) == "train.py:make:depth=2"
    with pytest.raises(UserError, match="several models are called 'resnet50'") as refused:
        meant(Choice("resnet50"))
    assert refused.value.hint == "did you mean 'torchvision:resnet50' or 'timm:resnet50'?"


@pytest.mark.usefixtures("shared")
def test_a_prediction_is_quiet_and_kept_only_if_asked_also_one_that_fails_and_the_folder_ignores_itself(here, capsys):
    assert answer([*PREDICT, "-q"]) == 0
    said = capsys.readouterr()
    assert ("all" in said.out, "next: " in said.err) == (True, False)
    assert list(here.iterdir()) == []

    assert answer([*PREDICT, "--keep"]) == 0
    (folder,) = runs(Path("results"))
    assert Path("results/.gitignore").read_text() == "*\n"

    store.remove(folder)
    (here / "bad.py").write_text("def make():\n    raise ValueError('no')\n")
    assert answer(["predict", "bad.py:make", "--strategies", "all"]) == 1
    assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["bad.py"]
