"""Trials whose process dies, hangs, is deaf, or leaves something behind; real processes throughout."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from profiler.core.case import encode
from profiler.engines import child as children
from profiler.engines.child import Child
from profiler.engines.local import RUN_TRIALS, Local
from tests.faults.trials import gone, log_of, offspring, outcomes, run, trial
from tests.program import PATIENCE_SECONDS

DEATHS = {"segv": "SIGSEGV", "abort": "SIGABRT", "illegal": "SIGILL"}
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
LIMIT = 1.0  # seconds of a stage, for what never ends


@pytest.mark.slow
def test_fault_14_a_trial_that_the_host_kills_is_a_row_that_says_why_and_the_others_run(here, shared, capsys):
    code = run("kill,at=recompute", "all,segments:k=1")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "crashed", "segments:k=1": "ok"}
    assert "all: crashed: killed in memory by SIGKILL: possibly out of host memory" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), DEATHS.items())
def test_fault_15_a_crash_is_a_row_with_its_signal_and_the_others_run(here, shared, capsys, kind, name):
    code = run(f"{kind},at=recompute", "all")

    out, err = capsys.readouterr()
    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "crashed"}
    assert f"all: crashed: killed in memory by {name}" in out
    told = err.partition("the last it printed (")[2]
    assert told.startswith(f"tests.faulty:build:kind={kind},at=recompute all: crashed; run/logs/")
    assert "\n    planted: about to" in told


def test_fault_16_an_error_that_sticks_to_its_process_is_lost_with_its_trial(engine):
    broken, clean = engine.run([trial("sticky"), trial()])

    assert (broken.outcome, clean.outcome) == ("failed", "ok")
    assert broken.detail.startswith("RuntimeError: CUDA error: device-side assert triggered (faulty.py:")


@pytest.mark.slow
def test_fault_17_a_trial_that_hangs_is_ended_at_the_limit_of_its_stage_and_the_others_run(here, shared, capsys):
    code = run("hang,at=recompute", "all,segments:k=1", "--stage-limit", "3")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "timed_out", "segments:k=1": "ok"}
    assert "all: timed out: memory took longer than 3 s" in capsys.readouterr().out


def begun(engine: Local, kind: str) -> Child:
    return engine._child(RUN_TRIALS, encode((trial(kind),)).decode(), kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("hang", signal.SIGTERM), ("stubborn", signal.SIGKILL)])
def test_fault_18_a_trial_is_asked_to_end_and_then_made_to(engine, monkeypatch, kind, number):
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.3)

    with begun(engine, kind) as child:
        ended = child.wait(LIMIT)

    assert ended.timed_out
    assert (ended.stage, ended.status) == ("memory", -number)


def test_fault_19_what_a_trial_leaves_running_is_ended_with_it(engine):
    (record,) = engine.run([trial("fork")])

    started = offspring(log_of(engine, record))
    assert record.outcome == "ok"
    assert started
    assert gone(started)


def escaped(engine: Local) -> int:
    """The process that a trial started in a session of its own, once that trial has ended."""
    with engine._child("tests.faults.trials:escape", "", "escape") as child:
        child.wait(PATIENCE_SECONDS)
    return int(json.loads(child.lines[0])["pid"])


@needs_linux
def test_fault_19_what_left_the_trials_session_is_ended_with_it(engine):
    assert gone({escaped(engine)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("exit", "the model's code called sys.exit(0) (faulty.py:198)"),
        ("exit0", "ended in memory without a result (exit code 0)"),
    ],
)
def test_fault_21_a_trial_that_exits_without_a_result_is_no_success(here, shared, capsys, kind, why):
    code = run(f"{kind},at=recompute", "all,segments:k=1")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "failed", "segments:k=1": "ok"}
    assert f"all: failed: {why}" in capsys.readouterr().out
