"""Percentages mean the same wherever they are typed, and a plan that is not there is no finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.analysis import gates
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.units import parse_budget
from profiler.request.sampling import sampling

GOOD = {"2%": 0.02, "2 %": 0.02, " 2.5% ": 0.025, "1e1%": 0.1, "02%": 0.02, "0.5%": 0.005}
BAD = (
    "\u0662%",
    "2\u066b5%",
    "\uff12%",
    "2",
    "%",
    "+2%",
    "-2%",
    "2,5%",
    "1_0%",
    "1e999%",
    "9" * 400 + "%",
    "nan%",
    "inf%",
    ".5%",
)


@pytest.mark.slow
@pytest.mark.parametrize("word", GOOD)
def test_typed_a_percentage_is_the_same_for_every_option(word: str):
    (rule,) = gates.parse(f"peak:>{word}")

    assert rule.most == pytest.approx(GOOD[word])
    assert parse_budget(word, whole_bytes=10**6) == pytest.approx(GOOD[word] * 10**6, abs=1)
    assert sampling(precision_target=word).precision_target == pytest.approx(GOOD[word])


@pytest.mark.parametrize("word", BAD)
def test_typed_what_one_option_refuses_the_others_do_too(word: str):
    with pytest.raises(UserError):
        gates.parse(f"peak:>{word}")
    with pytest.raises(UserError):
        sampling(precision_target=word)
    with pytest.raises(UserError):
        parse_budget(word, whole_bytes=10**6)


@pytest.mark.parametrize("command", ["run", "predict", "explain", "timeline"])
@pytest.mark.parametrize("strategy", ["plan:file=gone.json", "plan", "plan:file=."])
def test_typed_a_plan_that_is_not_there_ends_with_2(command: str, strategy: str, here: Path, capsys: Any):
    model = ["--model", "mlp"] if command == "run" else ["mlp"]
    option = "--strategy" if command == "explain" else "--strategies"

    code = answer([command, *model, option, strategy])

    err = capsys.readouterr().err
    assert (code, "gcprof: cannot read the plan '" in err) == (2, True)
    assert list(here.iterdir()) == []


def test_typed_a_plan_that_is_damaged_ends_with_2(here: Path, capsys: Any):
    Path("plan.json").write_text("{}", encoding="utf-8")

    assert answer(["run", "--model", "mlp", "--strategies", "plan"]) == 2
    assert "'plan.json' is not a plan" in capsys.readouterr().err


def test_typed_a_sweep_file_with_a_plan_that_is_not_there_ends_with_2(here: Path, capsys: Any):
    Path("sweep.toml").write_text('model = "mlp"\nstrategies = "plan:file=gone.json"\n', encoding="utf-8")

    assert answer(["run", "--config", "sweep.toml", "--strategies", "plan:file=gone.json"]) == 2
    assert "cannot read the plan 'gone.json'" in capsys.readouterr().err
