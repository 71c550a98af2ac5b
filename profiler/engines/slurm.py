"""Runs a plan as a job array of Slurm, by submitit: each job runs one shard on its node. Never imports torch.

The driver makes the shards and submits them; every job is the only writer of its own folder below the run folder, which
all machines must see. Records are yielded as the jobs write them, so that the run folder is complete at the end; if the
driver was killed, `gcprof merge RUN/shards/*` or --resume completes it.
"""

from __future__ import annotations

import importlib
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from profiler.analysis import progress
from profiler.core import optional_deps
from profiler.core.case import Trial
from profiler.core.catalogue import Count
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record
from profiler.core.secret_filter import hide
from profiler.engines.local import Local
from profiler.engines.slurm_results import Gathered
from profiler.engines.slurm_shards import Array, write_agreed

CARRY_OUT = "profiler.workflows.slurm_job:carry_out"
GENERAL = ("name", "mem_gb", "cpus_per_task")  # options of submitit for any cluster, besides those of `connect`
OURS = ("slurm_nodes", "slurm_ntasks_per_node", "slurm_tasks_per_node")  # a job is one process on one node
POLL_SECONDS = {"slurm": 2.0, "local": 0.1}
GRACE_SECONDS = {"slurm": 0.0, "local": 5.0}  # for jobs to end when they are told to


def connect(  # noqa: PLR0913  its keywords are the options of the engine
    stage_seconds: float = 600.0,
    logs: Path | None = None,
    *,
    executor: Literal["slurm", "local"] = "slurm",
    jobs: Count = 4,
    minutes: Count = 60,
    gpus_per_node: int = 1,
    partition: str = "",
    constraint: str = "",
    account: str = "",
    qos: str = "",
    array_parallelism: Count = 256,
    max_num_timeout: int = 3,
    folder: str = "",
    **more: Any,
) -> Slurm:
    """Return the engine of a Slurm job array, one shard of the sweep per job; executor=local runs on this machine."""
    unknown = [key for key in more if key not in GENERAL and (not key.startswith("slurm_") or key in OURS)]
    if unknown:
        hint = (
            f"{', '.join(GENERAL)}, and slurm_NAME for what else submitit's SlurmExecutor takes; a job is one process"
        )
        raise UserError(f"engine 'slurm' has no option '{unknown[0]}'", hint=hint)
    if executor == "local" and gpus_per_node and jobs > 1:
        raise UserError(
            "jobs on this machine would share its GPU", hint="jobs=1, or gpus_per_node=0 for the CPU, or --devices all"
        )
    named = {"partition": partition, "constraint": constraint, "account": account, "qos": qos}
    settings = {
        "timeout_min": minutes,
        "gpus_per_node": gpus_per_node,
        "name": "gcprof",
        "slurm_array_parallelism": array_parallelism,
        **{f"slurm_{key}": value for key, value in named.items() if value},
        **more,
    }
    return Slurm(
        executor, settings, jobs=jobs, requeues=max_num_timeout, jobs_folder=Path(folder) if folder else None,
        stage_seconds=stage_seconds, logs=logs,
    )  # fmt: skip


class Slurm:
    """Submits jobs in `run`; closing its iterator cancels what is not done, and keeps what is done."""

    def __init__(
        self,
        executor: str,
        settings: dict[str, Any],
        *,
        jobs: int,
        requeues: int = 3,
        jobs_folder: Path | None = None,
        stage_seconds: float = 600.0,
        logs: Path | None = None,
    ) -> None:
        self.logs = logs
        self._submitit: Any = optional_deps.load("submitit")
        self._executor = executor
        self._settings = settings
        self._num_jobs = jobs
        self._requeues = requeues
        self._jobs_folder = jobs_folder
        self._stage_seconds = stage_seconds

    def __enter__(self) -> Slurm:
        if self._executor == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            hint = "go to a machine that submits to Slurm; or executor=local to try it here, or --shard i/n anywhere"
            raise UserError("there is no sbatch here", hint=hint, exit_code=3)
        self._made(Path(tempfile.gettempdir()))  # refuses unknown options of submitit before there is a run folder
        return self

    def __exit__(self, *error: object) -> None: ...

    def survey(self) -> dict[str, Environment]:
        """Return the devices of a job, whose properties are unknown; with executor=local, those of this machine."""
        with Local(stage_seconds=self._stage_seconds) as local:
            devices = local.survey()
        names = ["cpu", *(f"cuda:{number}" for number in range(self._settings["gpus_per_node"]))]
        if self._executor == "local":
            return {name: devices[name] for name in names if name in devices}
        unknown = msgspec.structs.replace(
            devices["cpu"], device_name=None, device_bytes=None, device_uuid=None, driver=None, num_threads=None
        )
        return dict.fromkeys(names, unknown)

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """Answer on this machine: a question about a model needs no device."""
        with Local(stage_seconds=self._stage_seconds) as local:
            return local.ask(entry, text, failing=failing)

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield the records of earlier jobs, then those that the jobs of this call write.

        Raises UserError if nothing can be submitted, or if an unknown job of an earlier call is still writing.
        """
        assert self.logs, "the shards go into the run folder"
        trials, settled = tuple(plan), tuple(done)
        self._refuse_few_gpus(trials)
        gathered = Gathered(trials, settled)
        array = Array(self.logs.parent, gathered)
        executor = self._made(array.jobs_folder)
        write_agreed(array.jobs_folder, settled)
        try:
            yield from array.left_before(lambda job_id: self._active(array.jobs_folder, job_id))
            at_work = array.at_work()
            owed = [
                trial
                for trial in progress.owed(trials, gathered.records.values(), perhaps=True)
                if (trial.case, trial.round) not in at_work
            ]
            if owed:
                directory = owed[0].data_directory
                send = partial(self._sent, executor, agreed=array.jobs_folder, data_directory=directory)
                array.submit(owed, self._num_jobs, send)
            yield from array.follow(POLL_SECONDS[self._executor])
        finally:
            array.cancel(grace=GRACE_SECONDS[self._executor])

    def _refuse_few_gpus(self, trials: Sequence[Trial]) -> None:
        gpus = self._settings["gpus_per_node"]
        most = max((trial.case.num_ranks for trial in trials if trial.case.device.startswith("cuda")), default=0)
        if most > gpus:
            raise UserError(f"{most} ranks take as many GPUs, and a job has {gpus}", hint=f"slurm:gpus_per_node={most}")

    def _made(self, folder: Path) -> Any:
        """Return submitit's executor with our settings. Raises UserError for a setting that it does not know."""
        requeues = {f"{self._executor}_max_num_timeout": self._requeues}
        try:
            # a new folder for each call: submitit unpickles what it finds there, and anyone may have made a run folder
            below = (self._jobs_folder or folder) / secrets.token_hex(3)
            made = self._submitit.AutoExecutor(below, cluster=self._executor, **requeues)
            made.update_parameters(**self._settings)
        except OSError as error:
            hint = "slurm:folder=... is where submitit keeps its files; --resume submits again"
            raise UserError(f"cannot write to '{below}': {error.strerror}", hint=hint, exit_code=74) from error
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise UserError(f"submitit: {str(error).splitlines()[0]}", hint="its names, as slurm_NAME=value") from error
        return made

    def _sent(self, executor: Any, parts: list[Path], *, agreed: Path, data_directory: str | None) -> list[Any]:
        """Submit one array with a job for each shard. Raises UserError (exit code 3) where it is rejected."""
        directory = None if data_directory is None else str(Path(data_directory).absolute())
        work = [
            Work(part.absolute(), agreed=agreed.absolute(), stage_seconds=self._stage_seconds, data_directory=directory)
            for part in parts
        ]
        try:
            jobs: list[Any] = executor.submit_array(work)
        except (RuntimeError, OSError) as error:
            last = (hide(str(error)).strip().splitlines() or ["it does not say why"])[-1]
            raise UserError(f"nothing was submitted: {last}", hint="--resume submits again", exit_code=3) from error
        return jobs

    def _active(self, folder: Path, job_id: str) -> Any:
        """Return a job of an earlier call that is queued or running; None if it has ended or is unknown."""
        if self._executor != "slurm":
            return None
        job = self._submitit.SlurmJob(folder=folder, job_id=job_id)
        is_over = job.done(force_check=True) or job.state.upper() == "UNKNOWN"
        return None if is_over else job


class Work:
    """What a job runs; a job that is queued again after its time was up continues with the same folder."""

    def __init__(
        self,
        part: Path,
        *,
        agreed: Path,
        stage_seconds: float,
        data_directory: str | None = None,
        entry: str = CARRY_OUT,
    ) -> None:
        self.entry = entry
        self.part = part
        self.words = {"agreed": agreed, "stage_seconds": stage_seconds, "data_directory": data_directory}

    def __call__(self) -> int:
        module, _, name = self.entry.partition(":")
        number: int = getattr(importlib.import_module(module), name)(self.part, **self.words)
        return number

    def checkpoint(self) -> Any:
        """Return what is submitted again when the time of a job is up; submitit calls the method by this name."""
        return optional_deps.load("submitit").helpers.DelayedSubmission(self)
