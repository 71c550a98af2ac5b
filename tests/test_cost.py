"""What a sweep costs, told before it is run."""

import re
from typing import Any

import msgspec
import pytest

from profiler.analysis.progress import Bounds, calibrations, cost, num_steps, num_timed, step_seconds
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import OPERATORS, PASSES, Choice, Trial
from profiler.core.stats import Sampling
from tests import make

SLOW = Bounds(0.5, 0.6)  # seconds without checkpointing, and with a forward more


def trial(strategy: str = "none", *, passes: tuple[str, ...] = PASSES, round: int = 1, **fields: Any) -> Trial:
    return Trial(case=make.case(strategy, **{"device": "cuda:0", "samples": 3, **fields}), round=round, passes=passes)


LATER = {"passes": ("time",), "round": 2}


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [  # equality two steps or four, flops one, memory two, operators two; one to settle, one to warm up, three pairs
        (trial(passes=(*PASSES, OPERATORS)), 2 + 1 + 2 + 2 + 2 + 6, 4 + 1 + 2 + 2 + 2 + 6),
        (trial(precision="bf16"), 2 + 2 + 1 + 2 + 2 + 6, 2 + 4 + 1 + 2 + 2 + 6),  # and compared with fp32
        (trial("all"), 1 + 2 + 2 + 6, 8 + 1 + 2 + 2 + 6),  # by the memory pass's steps, or both of them twice
        (trial("all", verify="off"), 1 + 2 + 2 + 6, 1 + 2 + 2 + 6),
        (trial("all", **LATER), 1 + 3, 1 + 1 + 6),  # which may share the steps without a strategy
        (trial("all", repair_batchnorm=True, **LATER), 1 + 1 + 6, 1 + 1 + 6),
        (trial("all", warmup=0, **LATER), 1 + 3, 1 + 1 + 6),  # a step without a strategy always warms up
        (trial("compile-budget", warmup=0, **LATER), 1 + 3, 1 + 3),
        (trial("compile-budget", **LATER), 1 + 1 + 3, 1 + 1 + 3),  # it cannot be switched off: timed alone
        (msgspec.structs.replace(trial("all", **LATER), is_paired=False), 1 + 1 + 3, 1 + 1 + 3),
        (trial(passes=("memory",), parallel=Choice("ddp")), 3 + 1, 3 + 1),  # DDP's buckets settle
    ],
)
def test_the_steps_of_a_trial_are_those_of_its_passes(asked, least, most):
    assert num_steps(asked) == Bounds(least, most)


@pytest.mark.parametrize(
    ("seconds", "least", "most", "alone"),
    [
        (None, 4, 100, (4, 100)),
        (1.0, 4, 8, (4, 8)),  # two pairs take longer than there is; up to two more where those are warm-up
        (0.1, 4, 20, (6, 20)),  # 2 s of them
        (0.0001, 40, 1000, (60, 1000)),  # ten in a sample
    ],
)
def test_as_many_samples_as_there_is_time_for(seconds, least, most, alone):
    asked = trial(samples=4, sampling=Sampling())

    assert num_timed(asked, seconds) == Bounds(least, most)
    assert num_timed(msgspec.structs.replace(asked, is_paired=False), seconds) == Bounds(*alone)


def test_a_calibration_has_the_seconds_of_a_baseline_that_was_timed():
    seconds = [
        make.record(hidden_bytes={"aten.mm": 7}, seconds=(0.1, 0.3, 0.2)),
        make.record(hidden_bytes={}, **make.UNTIMED),
    ]

    assert [one.step_seconds for record in seconds for one in calibrations([record]).values()] == [0.2, None]
    assert calibrations([make.record()]) == {}


def test_every_rank_has_a_device_of_its_own():
    alone, four = trial(), trial(ranks=4, parallel=Choice("ddp"))
    known = {one.case.twin: SLOW for one in (alone, four)}

    assert cost([alone], known, start_seconds=2.0).gpu_seconds == Bounds(8.5, 9.5)
    more = Bounds(0.5 * (1 + 4 + 2), 0.5 * (1 + 2 * 4 + 2))  # one process with all batches; DDP's buckets
    assert cost([four], known, start_seconds=2.0).gpu_seconds == Bounds(9.5, 9.5).plus(more).times(4)


def test_predictions_cost_no_device_and_unknown_speeds_are_not_counted():
    plan = schedule.measured([trial("none").case, trial("all").case, trial(batch_size=8).case], 1, predict=True)

    found = cost(plan, {plan[0].case.twin: SLOW}, start_seconds=0.0)

    assert (found.num_trials, found.num_predicted, found.num_unknown) == (6, 3, 1)
    assert step_seconds(plan[1], SLOW) == Bounds(11 * 0.5, pytest.approx(19 * 0.6))  # up to one more forward a step
    assert found.gpu_seconds == step_seconds(plan[0], Bounds(0.5, 0.5)).plus(step_seconds(plan[1], SLOW))
    assert cost(plan, {}, start_seconds=1.0).gpu_seconds is None


@pytest.mark.usefixtures("shared")
def test_a_dry_run_of_a_cluster_tells_the_cost_of_the_gpu_that_is_asked_for_and_sends_nothing(
    here, monkeypatch, capsys
):
    for name in ("sbatch", "srun"):
        (here / name).write_text(f"#!/bin/sh\ntouch {here}/sent\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")

    words = ["run", "--model", "mlp", "--strategies", "all", "--engine", "slurm:constraint=h100,jobs=8", "--dry-run"]
    assert answer(words) == 0

    least, most = re.search(r"GPU seconds: (\S+) to (\S+), predicted, not measured", capsys.readouterr().err).groups()
    assert 0 < float(least) < float(most)
    assert sorted(path.name for path in here.iterdir()) == ["sbatch", "srun"]


@pytest.mark.parametrize(("models", "pattern", "code"), [("mlp", "nope.*", 1), ("mlp,mnist-cnn", "0", 0)])
def test_a_dry_run_refuses_blocks_that_no_model_has(here, shared, capsys, models, pattern, code):
    words = ["run", models, "--strategies", "all", "--blocks", pattern, "--device", "cpu", "--rounds", "1"]

    assert answer([*words, "--dry-run"]) == code

    said = capsys.readouterr()
    (refused,) = [line for line in said.err.splitlines() if "skipped" in line]
    assert f"no blocks match '{pattern}'; where none are named they are" in refused
    assert ("gcprof: no model has such blocks" in said.err) == bool(code)
    assert bool(said.out) != bool(code)
