"""Trials whose process dies, hangs, is deaf, or leaves something behind; real processes throughout."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from profiler.core import server_process
from profiler.core.case import Choice, Trial, encode
from profiler.engines import child as children
from profiler.engines import local
from profiler.engines.child import Child, Ended
from profiler.engines.local import RUN_TRIAL, Local
from profiler.views.tables import progress
from tests import make
from tests.faults.trials import gone, log_of, offspring, outcomes, run, trial, unprotected
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


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((3, 4), "SIGKILL: out of host memory: its control group counts 1 kill for that"),
        ((3, 3), "SIGKILL: possibly out of host memory, though its control group counts no kill for that"),
        ((None, None), "SIGKILL: possibly out of host memory"),
    ],
)
def test_fault_14_what_the_control_group_counts_is_told(engine, monkeypatch, counts, words):
    left = list(counts)
    monkeypatch.setattr(children, "memory_kills", lambda: left.pop(0))

    (record,) = engine.run([trial("kill")])

    assert record.detail.endswith(words)


@pytest.mark.parametrize(
    ("membership", "counter"),
    [
        ("0::/user/me\n", "user/me/memory.events"),
        ("0::/\n", "memory.events"),
        ("9:cpu:/\n4:memory:/box\n0::/\n", "memory/box/memory.oom_control"),
        ("4:cpu,memory:/box\n", "memory/memory.oom_control"),
    ],
)
def test_fault_14_the_count_is_read_by_either_version_of_control_groups(tmp_path, monkeypatch, membership, counter):
    (tmp_path / "cgroup").write_text(membership)
    (tmp_path / counter).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / counter).write_text("low 0\noom 3\noom_kill 2\n")
    monkeypatch.setattr(children, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(children, "MOUNT", tmp_path)

    assert children.memory_kills() == 2


def test_fault_14_where_there_is_no_count_it_is_not_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "MEMBERSHIP", tmp_path / "nowhere")

    assert children.memory_kills() is None


def test_twin_14_in_one_process_nothing_is_left_of_the_run(engine):
    records, ended = unprotected(engine, trial("kill"), trial())

    assert (records, ended.status) == ([], -signal.SIGKILL)


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


def test_fault_15_a_signal_without_a_name_is_told_by_its_number():
    assert Ended(status=-40, stage="memory").describe() == "killed in memory by signal 40"


def test_twin_15_in_one_process_a_crash_takes_the_other_trials_along(engine):
    records, ended = unprotected(engine, trial("segv"), trial())

    assert (records, ended.status) == ([], -signal.SIGSEGV)


def test_twin_15_where_crashes_are_not_told_the_last_words_are_in_the_log_alone(here, shared, monkeypatch, capsys):
    monkeypatch.setattr(progress, "FAILURES", ())

    run("segv,at=recompute", "all")

    out, err = capsys.readouterr()
    assert "planted: about to" not in out + err


def test_fault_16_an_error_that_sticks_to_its_process_is_lost_with_its_trial(engine):
    broken, clean = engine.run([trial("sticky"), trial()])

    assert (broken.outcome, clean.outcome) == ("failed", "ok")
    assert broken.detail.startswith("RuntimeError: CUDA error: device-side assert triggered (faulty.py:")


def test_fault_16_what_breaks_a_gpu_is_an_ordinary_error_on_a_cpu(engine):
    case = make.case(model=Choice("tests.faults.bad_index:build"), batch_size=4, samples=1, warmup=0)

    (record,) = engine.run([Trial(case=case)])

    assert record.outcome == "failed"
    assert record.detail.startswith("IndexError: index out of range")


def test_twin_16_in_one_process_it_sticks_to_the_next_trial(engine):
    (broken, spoilt), _ = unprotected(engine, trial("sticky"), trial())

    assert (broken.outcome, spoilt.outcome) == ("failed", "failed")


@pytest.mark.slow
def test_fault_17_a_trial_that_hangs_is_ended_at_the_limit_of_its_stage_and_the_others_run(here, shared, capsys):
    code = run("hang,at=recompute", "all,segments:k=1", "--stage-limit", "3")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "timed_out", "segments:k=1": "ok"}
    assert "all: timed out: memory took longer than 3 s" in capsys.readouterr().out


def begun(engine: Local, kind: str) -> Child:
    return engine._child(RUN_TRIAL, encode(trial(kind)).decode(), kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("hang", signal.SIGTERM), ("stubborn", signal.SIGKILL)])
def test_fault_18_a_trial_is_asked_to_end_and_then_made_to(engine, monkeypatch, kind, number):
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.3)

    with begun(engine, kind) as child:
        ended = child.wait(LIMIT)

    assert ended.timed_out
    assert (ended.stage, ended.status) == ("memory", -number)


@pytest.fixture
def no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is noticed, and not enforced."""
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.3)
    late = Ended(status=None, stage="equality", timed_out=True)
    monkeypatch.setattr(Child, "_stop", lambda self, limit, timed_out: late)


@pytest.mark.slow
def test_twin_17_without_an_end_what_hangs_goes_on(engine, no_end):
    with begun(engine, "hang") as child:
        child.wait(LIMIT)
        is_there = psutil.pid_exists(child._pid)

    assert is_there
    assert gone({child._pid})


@pytest.mark.slow
def test_twin_18_who_only_asks_a_deaf_trial_waits_for_ever(engine, no_end):
    with begun(engine, "stubborn") as child:
        child.wait(LIMIT)
        child._kill(signal.SIGTERM)
        is_there = psutil.pid_exists(child._pid)

    assert is_there
    assert gone({child._pid})


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
    (pid,) = (message["pid"] for message in child.messages)
    return int(pid)


@needs_linux
def test_fault_19_what_left_the_trials_session_is_ended_with_it(engine):
    assert gone({escaped(engine)})


@pytest.mark.slow
@needs_linux
def test_fault_19_it_is_ended_with_the_program_too(monkeypatch):
    monkeypatch.setattr(local, "PRELOAD", ())
    with Local() as engine, engine._child("tests.faults.trials:escape_and_stay", "", "escape") as child:
        while not child.messages:
            child._read(60.0)

    assert gone({child.messages[0]["pid"], child._pid})


@pytest.mark.slow
@needs_linux
def test_twin_19_where_nobody_adopts_it_it_stays(monkeypatch):
    monkeypatch.setattr(local, "PRELOAD", ())
    idle = "from profiler.engines import forkserver; forkserver.adopt_orphans = lambda: None; "
    monkeypatch.setattr(
        server_process, "BOOT", server_process.BOOT.replace("from profiler.engines", f"{idle}from profiler.engines")
    )

    with Local() as engine:
        pid = escaped(engine)

    assert psutil.pid_exists(pid)
    os.kill(pid, signal.SIGKILL)


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


def test_twin_21_by_its_exit_code_alone_it_looks_like_success(engine):
    records, ended = unprotected(engine, trial("exit0"), trial())

    assert (records, ended.status) == ([], 0)
