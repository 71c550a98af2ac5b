"""What a hint names where a word is not known: what begins so, what is a few slips away, and otherwise nothing."""

from __future__ import annotations

import pytest

from profiler.cli import answer
from profiler.core.errors import nearest, similar

GPUS = ("a100-40", "a100-80", "h100", "h200", "rtx-2080-ti", "rtx-3060", "t4")
FLAGS = ("--strategies", "--segments", "--device", "--max-samples", "--max-seconds", "--json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "words", "meant"),
    [
        ("2080ti", GPUS, ["rtx-2080-ti"]),
        ("RTX3060", GPUS, ["rtx-3060"]),
        ("a100", GPUS, ["a100-40", "a100-80"]),
        ("h10", GPUS, ["h100"]),
        ("--strategy", FLAGS, ["--strategies"]),
        ("--seg", FLAGS, ["--segments"]),
        ("--max", FLAGS, ["--max-samples", "--max-seconds"]),
        ("--jsno", FLAGS, ["--json"]),  # two letters in each other's place are one slip
    ],
)
def test_what_begins_so_or_is_a_few_slips_away_is_near(word: str, words: tuple[str, ...], meant: list[str]):
    assert similar(word, words) == meant


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("--frobnicate", FLAGS),
        ("pie", ("time", "memory", "frontier", "phases")),
        ("q", GPUS),
        ("", GPUS),
        ("anything", ()),
    ],
)
def test_where_nothing_is_near_nothing_is_named(word: str, words: tuple[str, ...]):
    assert nearest(word, words) is None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plot", "--kind", "memry"], "did you mean '--kind memory'?"),
        (["run", "--precision", "bf61"], "did you mean '--precision bf16'?"),
        (["run", "--verify", "strickt"], "did you mean '--verify strict'?"),
        (["run", "--model", "mlp:wdth=3"], "did you mean 'mlp:width=3'?"),
        (["run", "--model", "torchvison:resnet18"], "did you mean 'torchvision:resnet18'?"),
        (["plan", "mlp", "--budget", "60%", "--device", "fake:2080ti"], "did you mean '--device fake:rtx-2080-ti'?"),
        (["run", "--frobnicate"], "gcprof run --help"),
        (["plot", "--kind", "pie"], "choose from frontier, memory, "),
    ],
)
def test_a_hint_is_what_one_would_type(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    assert answer(words) == 2

    assert capsys.readouterr().err.splitlines()[1].startswith(f"hint: {hint}")
