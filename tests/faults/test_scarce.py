"""Machines that give no process, socket, pipe or nameless file, and files that cannot be removed: one line, no loss."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core import server_process
from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.engines import forkserver
from profiler.engines.child import Child
from profiler.engines.child_outcome import trial_record
from profiler.runs import store
from profiler.runs.writer import Writer
from profiler.workflows import owed_trials
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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE])
def test_scarce_a_system_without_nameless_files_in_memory_has_others(number: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "memfd_create", failing(number), raising=False)

    with server_process._nameless() as file:
        file.write(b"text")
        file.seek(0)

        assert file.read() == b"text"


def test_scarce_a_fork_that_is_refused_is_told_and_the_server_lives(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = socket.socketpair()
    channel, output = os.pipe()
    server = object.__new__(forkserver._Server)
    server._control, server._children = theirs, {}
    monkeypatch.setattr(os, "fork", failing(errno.EAGAIN))

    server._fork({"number": 7, "needs": []}, [channel, output])

    said = json.loads(ours.recv(1 << 16))
    assert said == {"number": 7, "pid": None, "refused": os.strerror(errno.EAGAIN)}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(channel)
    ours.close()
    theirs.close()


def test_scarce_the_trial_of_a_refused_fork_crashed_and_is_owed_again(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = socket.socketpair()
    trial = Trial(case=make.case("none"))
    with ours, theirs, Child(ours, "module:function", "", log=None) as child:
        theirs.sendall(json.dumps({"number": child._number, "pid": None, "refused": "no room"}).encode() + b"\n")

        ended = child.wait(10.0)
        record = trial_record(trial, child, ended, 0.0)

    assert (record.outcome, record.detail) == ("crashed", "no process could be started for it: no room")


class Scarce:
    """An engine for which the system has one process, and then no pipe."""

    logs = None

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for number, trial in enumerate(plan):
                if number:
                    with Child(ours, "module:function", "", log=None):
                        pass
                yield make.record(str(trial.case.strategy), case=trial.case, round=trial.round)


def test_scarce_a_run_that_gets_no_pipe_ends_with_3_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trials = tuple(Trial(case=make.case(name)) for name in ("none", "all"))
    folder = examples.run(tmp_path / "run", [], more=trials).folder
    monkeypatch.setattr(os, "pipe", failing(errno.EMFILE))

    followed = owed_trials.follow(Scarce(), folder)

    assert followed == (3, folder)
    assert [str(record.case.strategy) for record in store.load(folder).records] == ["none"]


def test_scarce_a_signature_that_cannot_be_removed_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = examples.run(tmp_path / "run", []).folder
    writer = Writer(folder)
    writer.append(make.record("none"))
    monkeypatch.setattr(Path, "unlink", failing(errno.EBUSY))

    writer.close()

    monkeypatch.undo()
    assert (folder / ".writer").exists()
    assert len(store.load(folder).records) == 1
    Writer(folder).close()
    assert not (folder / ".writer").exists()


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
