"""However the program is started and whatever it lacks (rows 8, 60, 63, 65): knows nothing of what is measured."""

from __future__ import annotations

import importlib.abc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.cli import answer
from profiler.runs import store
from tests.program import PATIENCE_SECONDS, environment

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
RUN = ("run", "--model", "mlp", "--segments", "2", *QUICK)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


# 8: no CUDA device


@pytest.mark.slow
@no_gpu
@pytest.mark.parametrize("word", ["cuda", "cuda:0"])
def test_fault_8_a_cuda_device_that_is_not_there_is_exit_code_3(word: str, here: Path, shared: None, capsys: Any):
    assert answer(["run", "--model", "mlp", "--device", word]) == 3

    first, hint = capsys.readouterr().err.splitlines()
    assert first == f"gcprof: --device: there is no '{word}': torch sees no CUDA device here"
    assert hint == "hint: --device cpu measures the CPU; `gcprof doctor` shows more"
    assert list(here.iterdir()) == []


# 60: matplotlib or jinja missing or broken


class Broken(importlib.abc.MetaPathFinder):
    """Whoever imports this library gets the error."""

    def __init__(self, library: str, error: Exception) -> None:
        self._library, self._error = library, error

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._library:
            raise self._error


def errors(library: str) -> dict[str, Exception]:
    return {
        "missing": ModuleNotFoundError(f"No module named '{library}'", name=library),
        "half": ModuleNotFoundError("No module named 'six'", name="six"),
        "binary": ImportError("numpy.core.multiarray failed to import"),
        "abi": AttributeError("_ARRAY_API not found"),
        "no folder": OSError("Matplotlib requires access to a writable cache directory"),
    }


def break_library(library: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(library, errors(library)[how]), *sys.meta_path])


@pytest.mark.parametrize("how", ["missing", "binary"])
def test_fault_60_a_run_without_matplotlib_is_measured_shown_and_kept(
    how: str, here: Path, shared: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    break_library("matplotlib", how, monkeypatch)

    assert answer([*RUN, "-o", "run"]) == 0

    out, err = capsys.readouterr()
    assert "segments:k=2" in out
    assert "note: no picture was drawn: " in err
    assert "matplotlib" in err
    assert [record.outcome for record in store.load(here / "run").records] == ["ok", "ok"]
    assert sorted(path.name for path in (here / "run" / "derived").iterdir()) == ["table.csv", "table.md"]


# 63: started from anywhere

SCRIPT = f"from profiler.cli import answer\nraise SystemExit(answer({[*RUN, '-o', 'run']!r}))\n"


def python(*command: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment(), input=text, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["stdin", "script"])  # by -m, -c and no stream at all it is run elsewhere here
def test_fault_63_trials_run_without_a_main_file_and_without_a_guard(how: str, here: Path):
    (here / "script.py").write_text(SCRIPT)

    done = python("-" if how == "stdin" else "script.py", cwd=here, text=SCRIPT if how == "stdin" else None)

    assert done.returncode == 0, done.stderr
    assert [record.outcome for record in store.load(here / "run").records] == ["ok", "ok"]


# 65: an error of gcprof's own
