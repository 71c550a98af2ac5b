"""What is typed wrong on a first day is understood, or told in one line with a hint that works."""

import shlex
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.cli.options import understood
from profiler.cli.output import split_script
from tests import examples, make

TRAIN = """
import torch


class GPT(torch.nn.Module):
    pass


def make():
    return GPT(), torch.randn(2, 4)


if __name__ == "__main__":
    print(make())
"""
LOOP = """
import torch


class GPT(torch.nn.Module):
    pass


def get_batch(batch_size=2):
    return torch.randn(batch_size, 4), torch.randn(batch_size, 4)


for _ in range(3):
    x, y = get_batch()
"""
MISTAKES = {  # what is typed -> the words of the hint
    "fit train.py --memory 1GiB --device t4": "gcprof fit --memory 1GiB --device t4 -- python train.py",
    "explan mlp": "did you mean 'gcprof explain'?",
    "train.py --epochs 3": "gcprof rehearse -- python train.py --epochs 3",
    "rehearse torchrun train.py": "gcprof rehearse -- torchrun train.py",
    "rehearse --": "gcprof rehearse -- python train.py",
    "explain mpl": "did you mean 'mlp'?",
    "explain mlp:wdth=3": "did you mean 'mlp:width=3'?",
    "explain resnt50": "did you mean 'torchvision:resnet50'?",
    "explain bert-base-uncased": "did you mean 'hf:bert'?",
    "explain model:GPT": "name the function that makes it with its batch: model:make",
    "explain loop.py:make": (
        "gcprof rehearse -- python loop.py runs it as it is; or write a function that returns (module, batch[, loss])"
    ),
    "explain model.py:mak": "did you mean 'make'?",
    "run mlp --strategies al": "did you mean 'all'?",
    "run mlp --segments 4,x": "whole numbers from 1 to 1,000,000: 1,2,4, or 1..32 (up to 1,000 of them), or 1..32:x2",
    "run mlp --precision bf61": "did you mean '--precision bf16'?",
    "run mlp --optimizer adamm": "did you mean 'adam'?",
    "run mlp --device h100": (
        "--device fake:h100 predicts for it, --device rehearse:h100 rehearses it; cuda measures here"
    ),
    "rehearse mlp --device h10": "did you mean 'h100'?",
    "run mlp --lr 0.1": "an optimizer's options follow its name: --optimizer adamw:lr=0.001",
    "explain hf:gpt2 --seq-len 512": (
        "a model's options follow its name: hf:gpt2:sequence=512; `gcprof models NAME` lists them"
    ),
    "explain mlp --quite": "did you mean '--quiet'?",
    "plan mlp --budget ten": "8GiB, 750MiB, 60% of the peak without checkpointing, or max",
    "show lst": "`gcprof runs list` shows the runs",
    "export 3fa9c1 --to cvs": "did you mean '--to csv'?",
    "timeline mlp -o step.gif": "name a file that ends in .png, .svg, .pdf",
}
UNDERSTOOD = {
    "explain mlp --amp --gpu t4": "explain mlp --precision amp-bf16 --device t4",
    "explain mlp --dtype torch.bfloat16": "explain mlp --precision bf16",
    "explain mlp --dtype=float16": "explain mlp --precision=fp16",
    "explain mlp --precision float32,half": "explain mlp --precision fp32,fp16",
    "run mlp --mixed-precision bf16 --grad-accum 4": "run mlp --precision amp-bf16 --accumulate 4",
    "run mlp --mixed_precision=no": "run mlp --precision=fp32",
    "run mlp --gradient_accumulation_steps 4 --bs 8": "run mlp --accumulate 4 --batch-size 8",
    "plan mlp --memory 8GiB": "plan mlp --budget 8GiB",
    "fit mlp --budget 8GiB": "fit mlp --memory 8GiB",
    "run mlp --strategy all --optim adamw": "run mlp --strategies all --optimizer adamw",
    "fit mlp --memory 8GiB": "fit mlp --memory 8GiB",  # ours stay
}


@pytest.fixture
def folder(here: Path) -> Path:
    for name in ("train.py", "model.py"):
        (here / name).write_text(TRAIN)
    (here / "loop.py").write_text(LOOP)
    examples.run(here / "results" / "20261120T174900Z-mlp-3fa9c1", [make.record()])
    return here


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_told_in_one_line_with_a_hint_and_leaves_nothing(typed, folder, capsys):
    before = sorted(folder.rglob("*"))

    code = answer(shlex.split(typed))

    printed = capsys.readouterr()
    said, hint = printed.err.splitlines()
    assert code in (2, 4)
    assert said.startswith("gcprof: ")
    assert hint == f"hint: {MISTAKES[typed]}"
    assert printed.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("typed", UNDERSTOOD)
def test_options_as_other_tools_call_them_are_ours(typed):
    assert understood(shlex.split(typed)) == shlex.split(UNDERSTOOD[typed])


REFUSED = {  # words without effect, or that cannot be meant -> what is said
    "predict mlp --device h1000": "nothing is known of 'h1000'",
    "predict mlp --fit": "gcprof fit MODEL finds the smallest GPU",
    "predict mlp --memory 1GiB": "gcprof fit MODEL --memory SIZE",
    "predict mlp --rehearse": "--rehearse is for one GPU",
    "max-batch mlp --memory 1GiB": "gcprof fit MODEL --batch-size max",
    "explain mlp --batch-size 1,2": "only one model, batch size and precision",
    "explain mlp --strategies all,sqrt": "only one strategy can be explained at once",
    "run mlp --device fake:cuda --predict": "predict has no effect on 'fake:cuda'",
    "run mlp --device fake:cuda --rounds 2": "--rounds has no effect on a prediction",
    "run mlp --device rehearse:h100 --rounds 2": "--rounds has no effect on a rehearsal",
    "run mlp --device rehearse:h100 --max-samples 9": "where no step is timed",
    "run mlp --device rehearse:h100 --engine ray": "--engine ray does not rehearse",
    "run mlp --devices all --device cpu": "--devices has no effect with --device",
    "run mlp --devices all --engine slurm:jobs=2": "--devices has no effect with --engine slurm:jobs=2",
    "run mlp --allow-parallel": "--allow-parallel has no effect without --devices",
    "rehearse mlp --cudnn-workspace x": "gcprof: --cudnn-workspace cannot be 'x'",
    "reproduce hf-trainer --predict": "hf-trainer cannot be predicted",
    "stages mlp,mnist-cnn": "only one model can be planned at once",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_cannot_be_meant_is_refused_before_anything_starts(typed, no_server, here, capsys):
    assert answer(shlex.split(typed)) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert REFUSED[typed] in said.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("dashes", [["--", "python"], ["python"], []])
@pytest.mark.parametrize("kind", ["python", "accelerate"])
def test_the_kind_of_code_is_not_taken_for_the_command(kind, dashes):
    own = ["fit", "--memory", "8GiB", "--emit", kind]

    assert split_script([*own, *dashes, "train.py"]) == (own, ["python", "train.py"])
