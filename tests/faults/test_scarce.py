"""Machines that give no process, socket, pipe or nameless file, and files that cannot be removed: one line, no loss."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core.case import Trial
from profiler.runs import store
from tests import examples, make

WORDS = ("--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
READERS = {
    "show": ["show", "run"],
    "show --json": ["show", "run", "--json"],
    "show --over": ["show", "run", "--over", "batch_size"],
    "list": ["list", "--folder", "."],
    "compare": ["compare", "run", "run"],
    "plot": ["plot", "run", "-o", "x.png"],
    "export": ["export", "run"],
    "report": ["report", "run", "-o", "x.html"],
    "validate": ["validate", "run"],
    "reproduce": ["reproduce", "chen2016", "--run", "run"],
    "explain": ["explain", "run"],
    "timeline": ["timeline", "run"],
    "explain --strategy": ["explain", "run", "--strategy", "all"],
}


def failing(number: int) -> Any:
    def fail(*words: object, **more: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


SCARCE = {
    "EMFILE at socketpair": (socket, "socketpair", errno.EMFILE),
    "EAGAIN at fork": (subprocess, "Popen", errno.EAGAIN),
    "EPERM at setsid": (subprocess, "Popen", errno.EPERM),
    "ENOMEM at fork": (subprocess, "Popen", errno.ENOMEM),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCARCE)
def test_scarce_a_server_that_cannot_be_started_is_one_line_and_ends_with_3(
    kind: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    where, name, number = SCARCE[kind]
    monkeypatch.setattr(where, name, failing(number))

    code = answer(["run", "--model", "mlp", *WORDS, "-o", "run"])

    err = capsys.readouterr().err
    assert code == 3
    assert f"gcprof: this machine cannot start a process for a trial: {os.strerror(number)}" in err
    assert "internal error" not in err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EBUSY, 74), (errno.EPERM, 74), (errno.EMFILE, 3), (errno.EAGAIN, 3), (errno.ENOSYS, 3), (errno.EILSEQ, 70)],
)
def test_scarce_wherever_the_system_refuses_the_command_says_so_in_a_line(
    number: int, code: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    examples.run(here / "run", [make.record("none")])
    monkeypatch.setattr(store, "load", failing(number))
    monkeypatch.setenv("XDG_CACHE_HOME", str(here))

    assert answer(["show", "run"]) == code

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2  # and the hint
    assert ("internal error" in err) == (code == 70)


@pytest.mark.parametrize("command", READERS)
def test_scarce_a_run_without_records_is_no_fault_of_ours(command: str, here: Path, capsys: Any):
    examples.run(here / "run", [], more=(Trial(case=make.case("none")),))

    code = answer(READERS[command])

    assert code in (0, 1, 2, 4)
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "timeline"])
def test_scarce_a_run_without_records_has_no_step_to_follow(command: str, here: Path, capsys: Any):
    examples.run(here / "run", [], more=(Trial(case=make.case("none")),))

    code = answer([command, "run"])

    assert (code, "gcprof: 'run' has no records yet" in capsys.readouterr().err) == (4, True)
