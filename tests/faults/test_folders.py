"""Folders that cannot be written, or are not there (rows 37 and 59): knows nothing of what goes into them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.runs import store
from tests import machines
from tests.program import PATIENCE_SECONDS, environment

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
RUN = ("run", "--model", "mlp", "--segments", "2", *QUICK)
LONG = "x" * 300  # a name may have 255 bytes


def complaint(err: str) -> str:
    """The line that says what is wrong; what comes before it is told of the machine."""
    *_, first, hint = err.splitlines()
    assert hint.startswith("hint: ")
    return first


# 37: an output folder that cannot be written


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        ("file", 2, "'file' is there already"),
        ("folder", 2, "'folder' is there already"),
        (".", 2, "'.' is there already"),
        ("file/run", 74, "is not a folder that can be written to"),
        (LONG, 74, "File name too long"),
        ("d/" * 2100, 74, "File name too long"),
    ],
    ids=["file", "folder", "here", "below a file", "long", "deep"],
)
def test_fault_37_a_bad_folder_is_refused_before_torch_is_imported(
    place: str, code: int, told: str, here: Path, no_server: None, capsys: Any
):
    (here / "file").write_text("mine")
    (here / "folder").mkdir()

    assert answer(["run", "--model", "mlp", "-o", place]) == code

    assert told in complaint(capsys.readouterr().err)
    assert sorted(path.name for path in here.rglob("*")) == ["file", "folder"]
    assert (here / "file").read_text() == "mine"


# 59: no git, no HOME, no temporary folder

BARE = (  # in sitecustomize.py: a machine without users, where temporary files have no place but the folder at hand
    "import os, pwd, tempfile\n"
    "def nobody(*_): raise KeyError('getpwuid(): uid not found')\n"
    "pwd.getpwuid = nobody\n"
    "places = ['/proc/nowhere'] + [os.getcwd()] * ('NOWHERE' not in os.environ)\n"
    "tempfile._candidate_tempdir_list = lambda: places\n"
    "from tests import machines\n"
    "machines.inherit()\n"
)


def on_a_bare_machine(*command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """No PATH, no HOME, no USER, no /tmp: nothing but Python. With NOWHERE, not even here is a temporary file taken."""
    (cwd / "site").mkdir(exist_ok=True)
    (cwd / "site" / "sitecustomize.py").write_text(BARE)
    path = os.pathsep.join([str(cwd / "site"), environment()["PYTHONPATH"]])
    bare = {**machines.variables(), "PYTHONPATH": path, "PATH": "", **more}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=bare, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        check=False,
    )  # fmt: skip


@pytest.mark.nightly
def test_fault_59_a_run_needs_nothing_of_the_machine(here: Path):
    done = on_a_bare_machine("-m", "profiler", *RUN, "-o", "run", cwd=here)

    assert done.returncode == 0, done.stderr
    assert "segments:k=2" in done.stdout
    assert [record.outcome for record in store.load(here / "run").records] == ["ok", "ok"]
