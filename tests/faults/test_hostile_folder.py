"""A folder that is somebody's trap, git's and Python's (row 57): knows nothing of what is measured in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiler.runs import store
from tests import examples
from tests.program import environment

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
RUN = ("run", "--model", "mlp", "--strategies", "none", *QUICK, "-o", "results/mine")
READERS = [
    ["show", "--format", "md"],
    ["report"],
    ["export", "--to", "csv"],
    ["export", "--to", "tensorboard"],
    ["export", "--to", "wandb"],
]
MODULES = ("json", "socket", "torch", "msgspec", "typer", "sitecustomize", "numpy")


class Trap:
    """A git repository, and Python's modules by name, that leave a mark when anything of them is run."""

    def __init__(self, folder: Path) -> None:
        self.sprung = folder / "sprung"
        self.folder = folder / "repository"
        script = folder / "trap.sh"
        script.write_text(f"#!/bin/sh\ntouch {self.sprung}\n")
        script.chmod(0o755)
        self.git("init", "--quiet", str(self.folder), cwd=folder)
        (self.folder / "a").write_text("a")
        self.git("add", "a")
        self.git("config", "core.fsmonitor", str(script))
        for hook in ("post-index-change", "pre-commit", "post-checkout"):
            (self.folder / ".git" / "hooks").mkdir(exist_ok=True)
            (self.folder / ".git" / "hooks" / hook).symlink_to(script)
        for name in MODULES:
            (self.folder / f"{name}.py").write_text(f"open({str(self.sprung)!r}, 'w')\nraise ImportError('trap')\n")

    def git(self, *words: str, cwd: Path | None = None) -> None:
        subprocess.run(["git", *words], cwd=cwd or self.folder, check=True, capture_output=True)


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def program(*words: str, cwd: Path, safe: tuple[str, ...] = ("-P",)) -> subprocess.CompletedProcess[str]:
    """As `gcprof` is started, which does not look for modules in the folder at hand; `python -m` does."""
    return subprocess.run(
        [sys.executable, *safe, "-m", "profiler", *words], cwd=cwd, env=environment(WANDB_MODE="offline"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.nightly
def test_fault_57_a_run_in_it_springs_nothing(trap: Trap):
    done = program(*RUN, cwd=trap.folder)

    assert done.returncode == 0, done.stderr
    assert not trap.sprung.exists()
    assert [record.outcome for record in store.load(trap.folder / "results" / "mine").records] == ["ok"]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_fault_57_nor_does_what_is_read_there(words: list[str], trap: Trap):
    if "wandb" in words:
        pytest.importorskip("wandb")
    examples.run(trap.folder / "results" / "run", examples.sweep((2,)))

    done = program(*words, cwd=trap.folder)

    assert done.returncode == 0, done.stderr
    assert not trap.sprung.exists()


def test_twin_57_one_question_of_git_springs_it(trap: Trap):
    trap.git("status")

    assert trap.sprung.exists()


@pytest.mark.parametrize("name", MODULES)
def test_twin_57_a_python_that_looks_in_the_folder_at_hand_springs_it(name: str, trap: Trap):
    bare = [sys.executable, "-S"]  # which has not imported a sitecustomize of the machine's own before
    subprocess.run([*bare, "-c", f"import {name}"], cwd=trap.folder, capture_output=True, check=False)

    assert trap.sprung.exists()
