"""Jobs of a cluster, each of which writes a part of a run: by submitit, on this machine for real."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import psutil
import pytest

from profiler import __version__, engines
from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.engines.slurm import Slurm, Work
from profiler.runs import store
from profiler.runs.store import Writer
from profiler.workflows import run as workflow
from profiler.workflows.resume import _refuse_changes
from profiler.workflows.run import RunRequest
from profiler.workflows.spec import Request
from tests import examples, make
from tests.program import PATIENCE_SECONDS, ROOT

LOGIN = Environment(gcprof=__version__, python=sys.version.split()[0], system="Linux")  # knows of no device
SECRET = "hunter2-3fa9c1"
SWEEP = ("--model", "mlp", "--strategies", "all", "--device", "cpu", "--rounds", "2", "--samples", "1", "--warmup", "0")
LOCAL = "slurm:executor=local,gpus_per_node=0"
HANGING = """
import os, time
import torch

def make(batch_size=2):
    if not os.path.exists("there"):
        open("there", "w").close()
        open("begun", "w").write("!")
        time.sleep(3600)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    return model, (torch.randn(batch_size, 4), torch.zeros(batch_size, 4)), torch.nn.functional.mse_loss
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that owes `none` and `all` in two rounds."""
    plan = schedule.measured([make.case("none"), make.case("all")], 2)
    store.create(tmp_path / "run", plan=plan, command="", environment=examples.ENVIRONMENT, sources={})
    return tmp_path / "run"


class Job:
    """A job of a cluster that writes its shard alone, and ends without a result."""

    def __init__(self, number: int, shard: Path) -> None:
        self.job_id, self.state, self.shard = str(number), "RUNNING", shard
        self.paths = self
        self.result_pickle = shard / "none"

    def done(self) -> bool:
        return self.state != "RUNNING"

    def cancel(self, check: bool = True) -> None: ...

    def end(self, state: str, *trials: Trial, torn: bytes = b"") -> None:
        writer = Writer(self.shard)
        for trial in trials:
            writer.append(make.record(case=trial.case, round=trial.round, environment=examples.ENVIRONMENT))
        writer.close()
        with (self.shard / "trials.jsonl").open("ab") as file:
            file.write(torn)
        self.state = state


class Cluster(Slurm):
    """A cluster whose jobs the test carries out."""

    def __init__(self, run: Path, *, jobs: int = 1) -> None:
        super().__init__(
            submitit=None, executor="local", settings={"gpus_per_node": 0}, num_jobs=jobs, requeues=3,
            jobs_folder=None, stage_seconds=1.0, logs=run / "logs",
        )  # fmt: skip
        self.plan = store.read_manifest(run).plan
        self.jobs: list[Job] = []

    def _made(self, folder: Path) -> Cluster:
        return self

    def submit_array(self, work: Sequence[Work]) -> list[Job]:
        self.jobs = [Job(number, one.shard) for number, one in enumerate(work, start=7)]
        return self.jobs

    def outcomes(self, monkeypatch: pytest.MonkeyPatch, step: Callable[[Job], object]) -> list[tuple[str, int, str]]:
        """Of all records of a run in which this step happens when the driver waits."""
        monkeypatch.setattr("profiler.engines.slurm.time.sleep", lambda seconds: step(self.jobs[0]))
        return [(str(one.case.strategy), one.round, one.outcome) for one in self.run(self.plan, ())]


def test_what_a_job_leaves_undone_has_crashed_and_the_next_call_goes_on_in_its_shard(run, monkeypatch):
    first, second = Cluster(run), Cluster(run, jobs=4)
    plan = first.plan

    assert first.outcomes(monkeypatch, lambda job: job.end("TIMEOUT", *plan[:1], torn=b'{"schema":1,"ca')) == [
        ("none", 1, "ok"), ("all", 1, "crashed"), ("none", 2, "crashed"),
    ]  # fmt: skip
    assert second.outcomes(monkeypatch, lambda job: job.end("COMPLETED", *plan[1:])) == [
        (str(trial.case.strategy), trial.round, "ok") for trial in plan
    ]
    assert [job.shard for job in second.jobs] == [job.shard for job in first.jobs]


def test_where_the_array_is_rejected_no_shard_keeps_another_engine_from_the_run(run):
    cluster = Cluster(run)
    cluster.submit_array = Mock(side_effect=RuntimeError("sbatch: error: invalid partition"))

    with pytest.raises(UserError, match="invalid partition", check=lambda error: error.exit_code == 3):
        list(cluster.run(cluster.plan))

    assert list((run / "shards").iterdir()) == []


PROGRAMS = {  # of Slurm, though nothing comes of what they take
    "srun": "",
    "sbatch": 'cp "$1" "$HOME/sent.sh"; echo Submitted batch job 41\n',
    "sacct": 'echo "JobID|State|NodeList"; echo "41_0|PENDING|n"\n',
    "scancel": 'echo "$@" >> "$HOME/cancelled"\n',
}
SENT = (
    "--account=me", "--array=0-1%1", "--constraint=h100", "--cpus-per-task=4", "--gpus-per-node=2", "--job-name=gcprof",
    "--nice=10", "--nodes=1", "--partition=gpu", "--signal=USR2@120", "--time=90",
)  # fmt: skip


def test_the_array_that_is_sent_is_what_was_asked_for(run, tmp_path, monkeypatch):
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    for name, value in {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "API_TOKEN": SECRET}.items():
        monkeypatch.setenv(name, value)
    asked = (
        "slurm:jobs=8,partition=gpu,minutes=90,gpus_per_node=2,constraint=h100,account=me,array_parallelism=1,"
        "cpus_per_task=4,slurm_signal_delay_s=120"
    )
    engine: Any
    with engines.connect(asked, stage_seconds=PATIENCE_SECONDS) as engine:
        engine.settings["slurm_additional_parameters"] = {"nice": 10}
        records = workflow.run_owed(engine, store.load(run))
        monkeypatch.setattr("profiler.engines.slurm.time.sleep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(records)

    sent = (tmp_path / "sent.sh").read_text()
    assert {f"#SBATCH {word}" for word in SENT} <= set(sent.splitlines())
    assert f"{sys.executable} -u -m submitit.core._submit {run / 'jobs'}/" in sent
    assert (tmp_path / "cancelled").read_text().split() == ["41_0", "41_1"]
    written = [path.read_bytes() for path in (*run.rglob("*"), tmp_path / "sent.sh") if path.is_file()]
    assert not any(SECRET.encode() in text for text in written)
    assert any(b"profiler.engines.slurm" in text for text in written)  # the twin: what is pickled would be seen


def test_without_slurm_the_machine_says_so_before_there_is_a_folder(here, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(here))

    assert answer(["run", *SWEEP, "--engine", "slurm:partition=gpu", "-o", "run"]) == 3
    assert list(here.iterdir()) == []


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes of jobs take from this one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("API_TOKEN", SECRET)


@pytest.mark.nightly
def test_two_real_jobs_give_what_one_run_gives(here, shared, jobs, capsys):
    assert answer(["run", *SWEEP, "--engine", f"{LOCAL},jobs=2", "-o", "run"]) == 0
    assert answer(["run", *SWEEP, "-o", "alone"]) == 0

    run, alone = store.load(here / "run"), store.load(here / "alone")
    assert [*map(examples.exact, examples.by_plan(run))] == [*map(examples.exact, examples.by_plan(alone))]
    parts = [here / "run" / "shards" / name for name in ("1", "2")]
    assert [{trial.round for trial in store.load(part).manifest.plan} for part in parts] == [{1}, {2}]
    assert answer(["merge", *map(str, parts), "-o", "merged"]) == 0
    assert rows(store.load(here / "merged").records) == rows(examples.by_plan(run))
    assert answer(["validate", "run"]) == 0
    assert not any(SECRET.encode() in path.read_bytes() for path in (here / "run").rglob("*") if path.is_file())


@pytest.mark.nightly
def test_a_job_whose_time_was_up_goes_on(here, jobs):
    """Its second model hangs the first time; nothing is lost or doubled."""
    (here / "hanging.py").write_text(HANGING)
    os.mkfifo(here / "begun")
    begun = os.open(here / "begun", os.O_RDWR)  # also where nobody writes at present
    quick = {"samples": 1, "warmup": 0, "batch_size": 4, "verify": "off"}
    cases = [make.case("none", model=Choice(model), **quick) for model in ("mlp", "hanging.py:make")]
    plan, digests = schedule.measured(cases, 1), store.code_digests(cases)
    store.create(here / "run", plan=plan, command="", environment=LOGIN, sources=digests)

    with engines.connect(f"{LOCAL},jobs=1", stage_seconds=PATIENCE_SECONDS) as engine:
        records = workflow.run_owed(engine, store.load(here / "run"))
        first, _ = next(records)
        assert select.select([begun], [], [], PATIENCE_SECONDS)[0], "it never began"
        started = psutil.Process().children(recursive=True)
        job = next(one for one in started if "submitit.core._submit" in one.cmdline())
        job.send_signal(signal.SIGUSR2)  # as Slurm does before the time of a job is up
        rest = [record for record, _ in records]

    assert [(one.case, one.outcome) for one in (first, *rest)] == [(trial.case, "ok") for trial in plan]
    (part,) = (here / "run" / "shards").iterdir()
    assert [one.case for one in store.load(part).records] == cases


@pytest.mark.parametrize(("device", "refused"), [(None, False), ("a GPU", False), ("another", True)])
def test_a_run_of_jobs_goes_on_by_jobs_and_on_the_device_that_they_had(tmp_path, device, refused):
    """Nothing was known of the GPU when the run began; its first record knows."""
    (trial,) = schedule.measured([make.case(device="cuda:0")], 1)
    store.create(tmp_path / "run", plan=(trial,), command="", environment=LOGIN, sources={})
    writer = Writer(tmp_path / "run")
    writer.append(make.record(case=trial.case, environment=msgspec.structs.replace(LOGIN, device_name="a GPU")))
    writer.close()
    now = {"cuda:0": msgspec.structs.replace(LOGIN, device_name=device)}

    with pytest.raises(UserError, match="device_name a GPU -> another") if refused else nullcontext():
        _refuse_changes(store.load(tmp_path / "run"), RunRequest(words=Request()), None, now)
