"""The page of trainers, run with the trainers themselves where they are installed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.runs import store
from tests.program import environment, gcprof

PAGE = (Path(__file__).parents[1] / "docs" / "trainers.md").read_text(encoding="utf-8")
LIGHTNING = pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="Lightning is not installed here")
TRANSFORMERS = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")),
    reason="transformers and accelerate are not installed here: pip install 'gcprof[hf]'",
)


def example(name: str) -> str:
    """The Python of the page that says this."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if name in code]
    return found


def run(folder: Path, code: str) -> None:
    """The example as a file of the user's."""
    (folder / "train.py").write_text(code)
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shown(folder: Path, name: str) -> list[str]:
    """The table that the page's own command prints of a run."""
    (command,) = re.findall(rf"^gcprof (show results/{name})$", PAGE, re.MULTILINE)
    done = gcprof(*shlex.split(command), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.nightly
@TRANSFORMERS
def test_the_trainers_page_records_with_and_without_checkpointing(tmp_path):
    run(tmp_path, example("TrainingArguments"))

    none, full = rows(store.load(tmp_path / "results" / "trainer").records)
    assert [row.case.strategy for row in (none, full)] == ["none", "hf"]
    assert [row.outcome for row in (none, full)] == ["ok", "ok"]
    assert none.case.model == "GPT2LMHeadModel"
    assert len(none.readings.step_seconds) == 12 - 3
    assert any(line.startswith("hf ") for line in shown(tmp_path, "trainer"))


@pytest.mark.nightly
@TRANSFORMERS
def test_a_plan_is_applied_to_what_the_trainer_gets(tmp_path):
    step = "model(**batch).loss.backward()\nassert all(one.grad is not None for one in model.parameters())\n"

    run(tmp_path, f"{example('profiler.plan')}\n{step}")


@pytest.mark.nightly
@LIGHTNING
def test_lightnings_page_records_two_strategies_in_one_folder(tmp_path):
    run(tmp_path, example("LightningModule"))

    none, full = rows(store.load(tmp_path / "results" / "lightning").records)
    assert [row.case.strategy for row in (none, full)] == ["none", "all"]
    assert [row.outcome for row in (none, full)] == ["ok", "ok"]
    assert none.case.batch_size == 8
    assert len(none.readings.step_seconds) == 12 - 3
    assert any(line.startswith("all ") for line in shown(tmp_path, "lightning"))
