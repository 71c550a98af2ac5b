"""Whatever becomes of a child is the outcome of its own trial; real processes throughout."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from profiler.case import Choice, Trial
from profiler.engines.child import LOG_BYTES
from profiler.engines.local import Local
from tests import make


def trial(kind: str | None = None, *, strategy: str = "none", **fields) -> Trial:
    model = Choice(f"_fault:kind={kind}" if kind else "mlp")
    return Trial(case=make.case(strategy, model=model, batch_size=4, samples=1, warmup=0), **fields)


def sleepers() -> set[int]:
    """What the fault `offspring` starts, whoever its parent is by now."""
    found = (process for process in psutil.process_iter(["cmdline", "status"]))
    return {
        p.pid
        for p in found
        if "import time; time.sleep(3600)" in (p.info["cmdline"] or []) and p.info["status"] != "zombie"
    }


def gone(pids: set[int]) -> bool:
    """Whether they end, given time; nothing waits so long unless it is broken."""
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)
    return not alive


@pytest.mark.parametrize(
    ("kind", "outcome", "words"),
    [
        ("kill", "crashed", "killed in equality by SIGKILL: possibly out of host memory"),
        ("segv", "crashed", "killed in equality by SIGSEGV"),
        ("abort", "crashed", "killed in equality by SIGABRT"),
        ("memory", "out_of_memory", "Tried to allocate 20.00 GiB"),
        ("host-memory", "out_of_memory", "can't allocate memory"),
        ("exit", "failed", "ended in equality without a result (exit code 0)"),
        ("quiet-exit", "failed", "ended in equality without a result (exit code 0)"),
        ("raise", "failed", "ValueError: planted: the third block does not like its input (fault.py:"),
        ("garbage", "failed", "bad result"),
        ("spam", "ok", ""),
        ("offspring", "ok", ""),
    ],
)
def test_what_becomes_of_a_child_is_the_outcome_of_its_trial_and_the_next_is_clean(engine, kind, outcome, words):
    failed, clean = engine.run([trial(kind), trial()])

    assert (failed.outcome, clean.outcome) == (outcome, "ok")
    assert words in (failed.detail or "")
    assert failed.case == trial(kind).case


@pytest.mark.parametrize("kind", ["hang", "stubborn"])
def test_a_child_that_hangs_is_ended_at_the_limit_of_its_stage(kind):
    with Local(stage_seconds=0.5) as engine:
        late, clean = engine.run([trial(kind), trial()])

    assert (late.outcome, clean.outcome) == ("timed_out", "ok")
    assert late.detail == "equality took longer than 0.5 s"


def test_what_a_child_leaves_running_is_ended_with_it(engine):
    before = sleepers()

    (record,) = engine.run([trial("offspring")])

    assert record.outcome == "ok"
    assert "offspring" in (Path(engine.logs) / f"{record.case.id}-1.log").read_text()  # the twin: it did start one
    assert gone(sleepers() - before)


def test_the_output_of_a_child_is_logged_up_to_a_limit_that_is_told(engine):
    (record,) = engine.run([trial("spam")])

    log = (Path(engine.logs) / f"{record.case.id}-1.log").read_bytes()
    assert log.endswith(b"more bytes left out]\n")
    assert len(log) < LOG_BYTES + 100


def test_the_traceback_of_a_failed_model_is_in_its_log(engine):
    (record,) = engine.run([trial("raise")])

    assert "planted: the third block" in (Path(engine.logs) / f"{record.case.id}-1.log").read_text()


def test_a_case_that_cannot_be_had_is_skipped_with_its_reason(engine):
    (record,) = engine.run([trial(strategy="segments:k=6")])

    assert (record.outcome, record.detail) == ("skipped", "only 5 modules for 6 segments")


def test_a_record_from_a_child_is_whole(engine):
    (record,) = engine.run([trial()])

    assert record.outcome == "ok"
    assert record.readings.peak_bytes > record.readings.start_bytes > 0
    assert record.environment.torch is not None
    assert set(record.stage_seconds) == {"start", "build", "equality", "flops", "memory", "time"}
    sample = record.readings.steps_per_sample
    assert record.num_steps == 2 + 1 + 2 + 1 + sample  # the noise floor; counting; settle, read; settle, a sample


def test_a_later_round_runs_the_time_pass_alone(engine):
    (record,) = engine.run([trial(round=2, passes=("time",))])

    assert record.round == 2
    assert record.readings.peak_bytes is None
    assert len(record.readings.step_seconds) == 1


def test_a_child_killed_by_a_signal_without_a_name_is_an_outcome():
    from profiler.engines.child import Ended

    assert Ended(status=-40, stage="memory").describe() == "killed in memory by signal 40"


def test_a_server_that_died_is_replaced():
    with Local(stage_seconds=60.0) as engine:
        list(engine.run([trial()]))
        server = engine._server._process
        server.kill()
        server.wait()
        (record,) = engine.run([trial()])

    assert record.outcome == "ok"


def test_the_survey_tells_the_cpu_first(engine):
    devices = engine.survey()

    assert next(iter(devices)) == "cpu"
    assert devices["cpu"].num_threads == int(os.environ["OMP_NUM_THREADS"])
