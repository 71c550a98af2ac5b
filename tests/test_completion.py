"""What a shell proposes for a word that is half typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler import views
from profiler.integrations import trackers
from profiler.training import strategies
from tests import examples, machines, make


def gcprof(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiler", *words],
        env={**os.environ, "PYTHONPATH": machines.python_path(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def proposed(typed: str) -> list[str]:
    """What bash is told for this line; the last word is half typed, or not begun behind a space."""
    number = len(typed.split()) - (not typed.endswith(" "))
    asked = {"_GCPROF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(number)}
    return gcprof(**asked).stdout.split()


@pytest.fixture
def results(here: Path) -> Path:
    for name in ("20261120T174900Z-mlp-3fa9c1", "20261121T090000Z-mlp-77ab02"):
        examples.run(here / "results" / name, [make.record()])
    return here / "results"


@pytest.mark.parametrize("command", ["show", "plot", "export", "merge", "validate"])
def test_runs_are_proposed_the_newest_first(results, command):
    newest, oldest = "20261121T090000Z-mlp-77ab02", "20261120T174900Z-mlp-3fa9c1"

    assert proposed(f"gcprof {command} ") == ["last", newest, oldest]
    assert proposed(f"gcprof {command} 20261120") == [oldest]


def test_models_are_proposed_and_of_a_family_its_beginning():
    assert proposed("gcprof run --model m") == ["mlp", "mnist-cnn"]
    assert proposed("gcprof plan torchv") == ["torchvision:"]


def test_of_a_list_the_last_word_is_completed():
    assert proposed("gcprof run --strategies none,seg") == ["none,segments"]
    shown = [name for name in strategies.TABLE if not name.startswith("_")]
    assert proposed("gcprof strategies ") == shown


def test_what_an_export_or_a_plot_can_be_is_proposed(here):
    assert proposed("gcprof export --to ") == [*views.EXPORTS, *trackers.TRACKERS]
    assert proposed("gcprof plot --kind ") == list(views.PLOTS)


def test_a_shell_is_not_kept_waiting_by_torch():
    asked = {"_GCPROF_COMPLETE": "complete_bash", "COMP_WORDS": "gcprof run --model m", "COMP_CWORD": "3"}

    told = gcprof(**asked, PYTHONVERBOSE="1").stderr

    assert "import 'typer.main'" in told
    assert "import 'torch" not in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell):
    done = gcprof("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert done.returncode == 0
    assert f"_GCPROF_COMPLETE=complete_{shell}" in done.stdout
