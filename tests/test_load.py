"""The benchmark of long runs sees what costs too much, what is lost and what is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import load, make


@pytest.mark.slow
def test_a_run_of_many_trials_costs_little_and_loses_none(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_peak_bytes", lambda: 100 << 20)  # here, all tests before it would count

    told, wrong = load.long_run(tmp_path / "run", 200)

    assert wrong == []
    assert told.startswith("200 trials: ")


def test_a_trial_that_is_lost_costs_too_much_or_takes_too_much_is_told(tmp_path):
    plan = list(load.planned(10))
    records = tuple(map(load.answered, plan))[:-1]

    wrong = load.violations(records, 10, overhead=0.004, used=301 << 20)

    assert wrong == ["1 trials are not there", "a trial costs 4.00 ms", "the run takes 301 MiB"]


def test_the_later_rounds_of_what_is_not_ok_are_no_loss():
    skipped = make.failed("none", "skipped", "why")

    assert load.violations((skipped,), load.ROUNDS, overhead=0.0, used=0) == []


def test_a_process_a_descriptor_and_a_file_that_are_left_are_told(tmp_path):
    before = load.left(tmp_path)

    with (tmp_path / "file").open("w") as file, subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        found = load.leaks(before, load.left(tmp_path), "here")
        assert child.stdin
        child.stdin.close()
    file.close()

    assert found[0] == "file is left here"
    assert found[1].endswith(" descriptors more here")
    assert found[2] == "1 processes more here"


def test_what_was_there_before_is_no_leak(tmp_path):
    Path(tmp_path / "file").touch()

    assert load.leaks(load.left(tmp_path), load.left(tmp_path), "here") == []


@pytest.mark.nightly
def test_many_rehearsals_leave_nothing_behind(hollow, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_temporary", lambda folder: tmp_path)  # here, the other tests' files go on

    told, wrong = load.rehearsed_run(tmp_path / "run", 2 * load.SETTLED)

    assert wrong == []
    assert told.startswith("20 rehearsals in ")


def test_a_log_that_tells_of_an_abort_is_told(tmp_path):
    (tmp_path / "mlp.1.log").write_text("hello\n", encoding="utf-8")
    (tmp_path / "mlp.2.log").write_bytes(b"\xffterminate called after throwing an instance of 'c10::Error'\n")

    assert load.aborts(tmp_path) == ["mlp.2.log: terminate called"]
