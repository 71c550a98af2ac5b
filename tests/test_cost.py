"""What a sweep costs, told before it is run."""

import re
import time
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from torch import nn

from profiler.analysis.progress import Bounds, Speed, cost, num_steps, num_timed, step_seconds
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import OPERATORS, PASSES, Choice, Trial
from profiler.core.record import Environment
from profiler.core.schedule import DDP_SETTLING
from profiler.core.stats import Sampling
from profiler.engines.local import Local
from profiler.request.spec import CheckedRequest
from profiler.training.workload import Workload
from profiler.views.tables.progress import cost_lines
from profiler.workflows.run import estimate as estimated
from tests import make

H100 = "NVIDIA H100 80GB HBM3"
SLOW = Speed(step_seconds=0.5, forward_seconds=0.1)

INSTEAD = "where none are named they are"


def trial(strategy: str = "none", *, passes: tuple[str, ...] = PASSES, round: int = 1, **fields: Any) -> Trial:
    case = make.case(strategy, **{"device": "cuda:0", "samples": 3, **fields})
    return Trial(case=case, round=round, passes=passes)


LATER = {"passes": ("time",), "round": 2}


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [  # equality two steps or four, flops one, memory two, operators two; one to settle, one to warm up, three pairs
        (trial(passes=(*PASSES, OPERATORS)), 2 + 1 + 2 + 2 + 2 + 6, 4 + 1 + 2 + 2 + 2 + 6),
        (trial(passes=("equality", OPERATORS)), 4 + 2, 4 + 2),
        (trial(precision="bf16"), 2 + 2 + 1 + 2 + 2 + 6, 2 + 4 + 1 + 2 + 2 + 6),  # and compared with fp32
        (trial("all"), 1 + 2 + 2 + 6, 8 + 1 + 2 + 2 + 6),  # by the memory pass's steps, or both of them twice
        (trial("all", verify="off"), 1 + 2 + 2 + 6, 1 + 2 + 2 + 6),
        (trial("all", **LATER), 1 + 3, 1 + 1 + 6),  # which may share the steps without a strategy
        (trial("all", repair_batchnorm=True, **LATER), 1 + 1 + 6, 1 + 1 + 6),
        (trial("compile-budget", **LATER), 1 + 1 + 3, 1 + 1 + 3),  # it cannot be switched off: timed alone
        (msgspec.structs.replace(trial("all", **LATER), is_paired=False), 1 + 1 + 3, 1 + 1 + 3),
    ],
)
def test_the_steps_of_a_trial_are_those_of_its_passes(asked, least, most):
    assert num_steps(asked) == Bounds(least, most)


@pytest.mark.parametrize(
    ("seconds", "least", "most", "alone"),
    [
        (None, 4, 100, (4, 100)),
        (1.0, 4, 8, (4, 8)),  # two pairs take longer than there is; up to two more where those are warm-up
        (0.4, 4, 8, (6, 8)),
        (0.2, 4, 10, (6, 10)),
        (0.1, 4, 20, (6, 20)),  # 2 s of them
        (0.01, 4, 100, (6, 100)),
        (0.0001, 40, 1000, (60, 1000)),  # ten in a sample
    ],
)
def test_as_many_samples_as_there_is_time_for(seconds, least, most, alone):
    asked = trial(samples=4, sampling=Sampling())

    assert num_timed(asked, seconds) == Bounds(least, most)
    assert num_timed(msgspec.structs.replace(asked, is_paired=False), seconds) == Bounds(*alone)


def test_a_strategy_takes_up_to_one_more_forward():
    assert step_seconds(trial("all"), SLOW) == Bounds(11 * 0.5, pytest.approx(19 * 0.6))
    assert step_seconds(trial(), SLOW) == Bounds(13 * 0.5, 15 * 0.5)


def test_every_rank_has_a_device_of_its_own():
    alone, four = trial(), trial(ranks=4, parallel=Choice("ddp"))
    known = {one.case.twin: SLOW for one in (alone, four)}

    assert cost([alone], known, start_seconds=2.0).gpu_seconds == Bounds(8.5, 9.5)
    more = Bounds(0.5 * (1 + 4 + 2), 0.5 * (1 + 2 * 4 + 2))  # one process with all batches; DDP's buckets
    assert cost([four], known, start_seconds=2.0).gpu_seconds == Bounds(9.5, 9.5).plus(more).times(4)


def test_predictions_cost_no_device_and_unknown_speeds_are_not_counted():
    plan = schedule.measured([trial("none").case, trial("all").case, trial(batch_size=8).case], 1, predict=True)
    known = {plan[0].case.twin: SLOW}

    found = cost(plan, known, start_seconds=0.0)

    assert (found.num_trials, found.num_predicted, found.num_unknown) == (6, 3, 1)
    assert found.gpu_seconds == step_seconds(plan[0], SLOW).plus(step_seconds(plan[1], SLOW))
    assert cost(plan, {}, start_seconds=1.0).gpu_seconds is None


# In words


def plan_of(*strategies: str, **fields: Any) -> CheckedRequest:
    cases = [trial(strategy, model=Choice("mlp"), **fields).case for strategy in strategies]
    return CheckedRequest(trials=schedule.measured(cases, 2), data_directory=None)


def told(*what: Any) -> list[str]:
    estimate = estimated(*what)
    return cost_lines(estimate.cost, basis=estimate.basis, start=estimate.start, unknown=estimate.unknown)


@pytest.fixture
def lent(shared: None) -> Local:
    """An engine whose look at a device is made up: a process is started all the same."""

    class Looking(Local):
        def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
            return super().ask(entry, "cpu", failing=failing)

    return Looking()


def test_the_seconds_of_a_known_gpu_are_predicted_with_their_stated_error(lent):
    plan = plan_of("none", "all", samples=4, sampling=Sampling())
    devices = {"cuda:0": Environment(gcprof="", python="", system="", device_name=H100)}
    with lent:
        found = told(plan, devices, lent, "local")

    assert found[0] == "4 trials"
    least, most = re.fullmatch(r"GPU seconds: (\S+) to (\S+), predicted, not measured", found[2]).groups()
    assert 0 < float(least) < float(most)
    assert re.match(
        r"  \S+ s as measured now for the start of a trial; times are estimated for ideal kernels", found[3]
    )
    assert H100 in found[3]


def test_what_cannot_be_predicted_in_time_is_told(lent, monkeypatch):
    monkeypatch.setattr(time, "monotonic", iter(range(0, 10_000, 100)).__next__)
    devices = {"cuda:0": Environment(gcprof="", python="", system="", device_name=H100)}
    with lent:
        found = told(plan_of("none"), devices, lent, "slurm:jobs=2")

    assert found[-1] == "GPU seconds of 2 trials: not known: not predicted within 15 s"


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

    told = capsys.readouterr().err
    assert "GPU seconds: " in told
    assert "3 s assumed for the start of a trial" in told
    assert sorted(path.name for path in here.iterdir()) == ["sbatch", "srun"]


def test_ddp_settles_as_long_as_it_is_told_to():
    alone = Workload(module=nn.Linear(1, 1), batch=None, loss=lambda module, batch: batch)

    for parallel, settling in ((UNSET, alone.settling), (Choice("ddp"), DDP_SETTLING)):
        assert num_steps(trial(passes=("memory",), parallel=parallel)) == Bounds(settling + 1, settling + 1)


@pytest.mark.parametrize(
    ("models", "pattern", "code", "refused"),
    [
        ("mlp", "nope.*", 1, [f"mlp: skipped, no blocks match 'nope.*'; {INSTEAD} 0 to 4"]),
        (
            "mlp,mnist-cnn",
            "0",
            0,
            [f"mnist-cnn:channels=32: skipped, no blocks match '0'; {INSTEAD} trunk.0 to trunk.300"],
        ),
    ],
)
def test_a_dry_run_refuses_blocks_that_no_model_has(here, shared, capsys, models, pattern, code, refused):
    words = ["run", models, "--strategies", "all", "--blocks", pattern, "--device", "cpu", "--rounds", "1"]

    assert answer([*words, "--dry-run"]) == code

    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if "skipped" in line] == refused
    assert ("gcprof: no model has such blocks" in said.err) == bool(code)
    assert bool(said.out) != bool(code)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["none", "all"])
@pytest.mark.parametrize("sampling", [None, Sampling(max_seconds=0.05)])
def test_a_real_trial_takes_the_steps_that_were_told(engine, strategy, sampling):
    fields: dict[str, Any] = {"sampling": sampling} if sampling else {}
    asked = trial(strategy, device="cpu", model=Choice("mlp"), batch_size=4, samples=5, **fields)
    planned = [asked] if strategy == "none" else [msgspec.structs.replace(asked, case=asked.case.baseline), asked]

    *_, record = engine.run(planned)

    readings = record.readings
    timed = 2 * (len(readings.step_seconds) + len(readings.warmup_seconds) - 1)
    as_samples = record.num_steps - timed * (readings.steps_per_sample - 1)  # as if each sample was one step
    told = num_steps(asked)
    assert told.least <= as_samples <= told.most
    if not sampling:
        assert as_samples == told.least
