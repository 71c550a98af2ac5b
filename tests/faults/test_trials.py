"""Trials that go wrong, each in a row of its own: real processes throughout; the model is tests/faulty.py."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice, Trial, encode
from profiler.core.record import Shortage
from profiler.core.units import GIB
from profiler.engines import child as children
from profiler.engines import worker
from profiler.engines.local import RUN_TRIALS
from profiler.measuring.bench import switches
from profiler.runs import store
from tests import make
from tests.faults.trials import gone, outcomes, run, trial
from tests.program import PATIENCE_SECONDS, next_words

USERS = Path(__file__).parents[1] / "user_models"

WRONG = [  # under `all` alone: kind, exit code, outcome, what is said
    ("kill", 1, "crashed", "killed in memory by SIGKILL: possibly out of host memory"),
    ("segv", 1, "crashed", "killed in memory by SIGSEGV"),
    ("exit", 1, "failed", "the model's code called sys.exit(0) (faulty.py:"),
    ("exit0", 1, "failed", "ended in memory without a result (exit code 0)"),
    ("bad_result", 1, "failed", "bad result: "),
    ("hang", 1, "timed_out", "memory took longer than 3 s"),
    ("oom", 0, "out_of_memory", "CUDA out of memory. Tried to allocate 20.00 GiB"),
    ("nograd", 1, "invalid", "1 of 5 parameters have no gradient: 2.scale"),
    ("dropout_norng", 1, "invalid", "two runs without checkpointing differ by 0.0e+00"),
    ("spam", 0, "ok", "all"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code", "outcome", "words"), WRONG, ids=[kind for kind, *_ in WRONG])
def test_what_goes_wrong_is_a_row_that_says_why_and_the_others_run(here, shared, capsys, kind, code, outcome, words):
    limit = ("--stage-limit", "3") if kind == "hang" else ()

    assert run(f"{kind},at=recompute", "all,segments:k=1", *limit) == code

    out, err = capsys.readouterr()
    assert outcomes(here / "run") == {"none": "ok", "all": outcome, "segments:k=1": "ok"}
    assert words in " ".join(out.split())
    assert "\x1b" not in out + err
    row = next(row for row in rows(store.load(here / "run").records) if row.case.strategy == "all")
    if outcome == "ok":
        assert row.gradients == "bit-equal"
    else:  # no saving, and no point that any other is measured by
        assert (row.peak_ratio, row.time_ratio, row.on_frontier) == (None, None, False)
    if kind == "segv":
        assert "\n    planted: about to read at 0" in err.partition("the last it printed (")[2]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("hang", signal.SIGTERM), ("stubborn", signal.SIGKILL)])
def test_fault_18_a_trial_is_asked_to_end_and_then_made_to(engine, monkeypatch, kind, number):
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.3)

    with engine._child(RUN_TRIALS, encode((trial(kind),)).decode(), kind) as child:
        ended = child.wait(1.0)  # second; it never ends

    assert ended.timed_out
    assert (ended.stage, ended.status) == ("memory", -number)


def test_fault_19_what_a_trial_leaves_running_is_ended_with_it(engine):
    (record,) = engine.run([trial("fork")])

    log = (engine.logs / f"{store.log_name(record.key)}.log").read_bytes()
    started = {int(pid) for pid in re.findall(rb"offspring (\d+)", log)}
    assert record.outcome == "ok"
    assert started
    assert gone(started)


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_fault_19_what_left_the_trials_session_is_ended_with_it(engine):
    with engine._child("tests.faults.trials:escape", "", "escape") as child:
        child.wait(PATIENCE_SECONDS)

    assert gone({int(json.loads(child.lines[0])["pid"])})


def test_fault_12_where_nothing_fits_the_smallest_request_is_told_and_what_to_try(here, shared, capsys):
    assert run("oom", "none,all") == 1

    out, err = capsys.readouterr()
    assert outcomes(here / "run") == {"none": "out_of_memory", "all": "out_of_memory"}
    full = store.load(here / "run").records[0]
    assert full.shortage == Shortage(of="device", asked_bytes=20 * GIB, free_bytes=3 * GIB // 2)
    assert "nothing fits into memory: the smallest request that failed was 20.0 GiB with 1.50 GiB free" in out
    assert answer(next_words(err)) == 0


def test_fault_13_every_way_of_saying_it_is_known_and_no_other():
    blas = RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    for error, of in ((MemoryError(), "host"), (blas, "device"), (ValueError("can't allocate memory"), None)):
        assert getattr(worker.shortage(error), "of", None) == of


def test_fault_29_switches_that_a_model_changes_are_told_and_the_next_trial_has_its_own(engine):
    mine = switches()["threads"]

    spoilt, clean = engine.run([trial("flags"), trial()])

    assert (spoilt.outcome, clean.outcome) == ("ok", "ok")
    (told,) = [note.text for note in spoilt.notes if note.code == "GCP019"]
    assert f"threads {mine} -> 3" in told
    assert "cudnn.benchmark False -> True" in told
    assert "GCP019" not in {note.code for note in clean.notes}
    assert clean.environment.num_threads == int(mine)


@pytest.mark.parametrize(
    ("factory", "outcome", "detail"),
    [
        ("wrong_shape", "failed", "mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4) (broken.py:13)"),
        ("loss_before_batch", "failed", "the factory returned (Net, function, Tensor): return"),
        ("no_loss", "invalid", "the module's output holds no loss but a tensor of shape (2, 4)"),
        ("loss_of_integers", "invalid", "the loss is of torch.int64, which has no gradient"),
    ],
)
def test_fault_23_what_the_users_code_does_wrong_is_the_outcome_with_the_users_line(engine, factory, outcome, detail):
    case = make.case(model=Choice(f"{USERS}/broken.py:{factory}"), batch_size=None, samples=1, warmup=0)
    (record,) = engine.run([Trial(case=case)])

    assert record.outcome == outcome
    assert detail in record.detail
