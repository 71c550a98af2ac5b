"""What is typed on a first day is understood, or told in one line with a hint that works; help and completions."""

import re
import shlex
from pathlib import Path

import pytest

from profiler.cli import COMMANDS, answer, command
from profiler.cli import options as layout
from profiler.cli.options import CHOICES, understood
from profiler.cli.output import split_script
from profiler.core import device_choice, gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.runs import runs, store
from profiler.training import resolved_label
from profiler.training.models import meant
from profiler.workflows import spec
from tests import examples, make
from tests.program import gcprof

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

    assert answer(shlex.split(typed)) in (2, 4)

    printed = capsys.readouterr()
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


def test_a_command_is_what_a_shell_would_run_and_a_notebook_is_executed():
    assert split_script(["fit", "--", "A=1", "torchrun", "a.py"]) == (["fit"], ["env", "A=1", "torchrun", "a.py"])
    for words in (["fit", "a.ipynb"], ["fit", "--", "a.ipynb"]):
        assert split_script(words) == (["fit"], ["jupyter", "execute", "a.ipynb"])
    with pytest.raises(UserError, match="one word", check=lambda error: error.hint == "gcprof fit -- python train.py"):
        split_script(["fit", "--", "python train.py"])


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
    with pytest.raises(UserError, match="several", check=lambda e: "torchvision:resnet50' or 'timm:resnet50" in e.hint):
        meant(Choice("resnet50"))


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


# --- help and completions: commands in groups, options in panels, three examples, what a half typed word may be


def shown(words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert answer(words) == 0
    return capsys.readouterr().out


def proposed(typed: str) -> list[str]:
    """What bash is told for this line; the last word is half typed, or not begun behind a space."""
    number = len(typed.split()) - (not typed.endswith(" "))
    asked = {"_GCPROF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(number)}
    return gcprof(cwd=Path(), **asked).stdout.split()


def test_runs_are_proposed_the_newest_first(here):
    oldest, newest = "20261120T174900Z-mlp-3fa9c1", "20261121T090000Z-mlp-77ab02"
    for name in (oldest, newest):
        examples.run(here / "results" / name, [make.record()])

    assert proposed("gcprof show ") == ["last", newest, oldest]
    assert proposed("gcprof merge 20261120") == [oldest]


def test_the_main_help_lists_ten_commands_and_all_of_them_when_asked(monkeypatch, capsys):
    listed = {
        flag: re.findall(r"^  ([a-z][\w-]+)  +[A-Z]", shown([flag], 80, monkeypatch, capsys), flags=re.MULTILINE)
        for flag in ("--help", "--help-all")
    }

    asked = ["run", "rehearse", "explain", "fit", "plan", "compare", "report", "show", "doctor", "runs"]
    assert sorted(listed["--help"]) == sorted(asked)
    kept = [name for group in layout.RUNS.values() for name in group]
    assert sorted(listed["--help-all"]) == sorted({*COMMANDS, "runs"} - {*kept})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_at_most_twenty_options_unless_all_are_asked_for(name, monkeypatch, capsys):
    def options(flag: str) -> list[str]:
        return re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown([name, flag], 100, monkeypatch, capsys), flags=re.MULTILINE)

    short, whole = options("--help"), options("--help-all")
    lines = layout.examples(name, command(name).__doc__)

    assert len(set(lines)) == 3  # that they are taken: tests/test_pasted_lines.py
    assert len(short) <= 20
    assert {*short} <= {*whole}
    assert ("--help-all" in short) == (len(whole) > len(short))


def test_choices_are_shown_are_taken_and_are_completed(monkeypatch, capsys):
    out = shown(["run", "--help-all"], 100, monkeypatch, capsys)

    for name, choices in CHOICES.items():
        flag = f"--{name.replace('_', '-')}"
        if name in spec.Request.__struct_fields__:
            assert f"{flag} [{'|'.join(choices)}]" in out or name == "routing"
            for word in choices:
                with_ranks = {"ranks": "2"} if name == "parallel" else {}
                device = {"device": "fake:t4"} if name == "routing" else {}
                words = spec.Request(model="mlp", **{name: word}, **with_ranks, **device)
                assert spec.check(words, device_choice.any_device).trials
    assert proposed("gcprof run --verify ") == list(CHOICES["verify"])
    assert proposed("gcprof run --optimizer ad") == ["adam", "adamw"]
    assert proposed("gcprof rehearse --device rtx-4") == ["rtx-4060", "rtx-4070", "rtx-4090"]
