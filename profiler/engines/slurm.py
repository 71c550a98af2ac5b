"""Runs a plan as a job array of Slurm, by submitit: each job runs one shard on its node. Never imports torch.

The owed trials are dealt to run folders `shards/N` below the run folder, which all machines must see; every job is the
only writer of its own. Records are yielded as the jobs write them, so that the run is complete at the end. If the
driver was killed, --resume submits the shards that still owe trials, and `gcprof runs merge RUN/shards/*` merges what
is there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import latest
from profiler.core import safe_files, schedule
from profiler.core.case import Key, Trial, decode, encode
from profiler.core.catalogue import Count
from profiler.core.errors import UserError, load_module
from profiler.core.record import Environment, Record
from profiler.core.safe_files import hide
from profiler.core.schedule import Shard
from profiler.engines.local import Local, informed, lost
from profiler.runs import runs, store
from profiler.runs.store import Writer

GENERAL = ("name", "mem_gb", "cpus_per_task")  # options of submitit for any cluster, besides those of `connect`
OURS = ("slurm_nodes", "slurm_ntasks_per_node", "slurm_tasks_per_node")  # a job is one process on one node
POLL_SECONDS = {"slurm": 2.0, "local": 0.1}
GRACE_SECONDS = {"slurm": 0.0, "local": 5.0}  # for jobs to end when they are told to
RULE = "-" * 22  # encloses the traceback in the message of submitit's error


def connect(
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
        submitit=load_module("submitit"), executor=executor, settings=settings, num_jobs=jobs,
        requeues=max_num_timeout, jobs_folder=Path(folder) if folder else None,
    )  # fmt: skip


@dataclass(kw_only=True)
class Slurm:
    """Submits jobs in `run`; closing its iterator cancels what is not done, and keeps what is done."""

    submitit: Any
    executor: str
    settings: dict[str, Any]
    num_jobs: int
    requeues: int
    jobs_folder: Path | None
    stage_seconds: float = 600.0
    logs: Path | None = None

    def __enter__(self) -> Slurm:
        if self.executor == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            hint = "go to a machine that submits to Slurm; or executor=local to try it here, or --shard i/n anywhere"
            raise UserError("there is no sbatch here", hint=hint, exit_code=3)
        self._made(Path(tempfile.gettempdir()))  # refuses unknown options of submitit before there is a run folder
        return self

    def __exit__(self, *error: object) -> None: ...

    def survey(self) -> dict[str, Environment]:
        """Return the devices of a job, whose properties are unknown; with executor=local, those of this machine."""
        with Local(stage_seconds=self.stage_seconds) as local:
            devices = local.survey()
        names = ["cpu", *(f"cuda:{number}" for number in range(self.settings["gpus_per_node"]))]
        if self.executor == "local":
            return {name: devices[name] for name in names if name in devices}
        unknown = msgspec.structs.replace(
            devices["cpu"], device_name=None, device_bytes=None, device_uuid=None, driver=None, num_threads=None
        )
        return dict.fromkeys(names, unknown)

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool = False) -> dict[str, Any]:
        """Answer on this machine: a question about a model needs no device."""
        with Local(stage_seconds=self.stage_seconds) as local:
            return local.ask(entry, text, failing=failing, rehearses=rehearses)

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield the records of earlier jobs, then those that the jobs of this call write.

        Raises UserError if nothing can be submitted, or if an unknown job of an earlier call is still writing.
        """
        assert self.logs, "the shards go into the run folder"
        trials, settled = tuple(plan), tuple(done)
        gpus = self.settings["gpus_per_node"]
        most = max((trial.case.num_ranks for trial in trials if trial.case.device.startswith("cuda")), default=0)
        if most > gpus:
            raise UserError(f"{most} ranks take as many GPUs, and a job has {gpus}", hint=f"slurm:gpus_per_node={most}")
        shards = Shards(self.logs.parent, trials, settled)
        executor = self._made(shards.jobs_folder)
        jobs: dict[Path, Any] = {}
        try:
            for shard in shards.plans:
                yield from shards.news(shard)
            following = shards.deal(self.num_jobs)
            if owing := [shard for shard in following if not store.is_written(shard)]:  # an earlier job writes others
                jobs = self._submitted(executor, owing, trials[0].data_directory)
            while following:
                over = [  # then all that it wrote is read
                    shard
                    for shard in following
                    if (shard not in jobs or jobs[shard].done()) and not store.is_written(shard)
                ]
                for shard in tuple(following):
                    yield from shards.news(shard, why_over=_why_over(jobs.get(shard)) if shard in over else None)
                    if shard in over:
                        following.remove(shard)
                        jobs.pop(shard, None)
                if following:
                    time.sleep(POLL_SECONDS[self.executor])
        finally:
            until = time.monotonic() + GRACE_SECONDS[self.executor]
            for job in jobs.values():
                job.cancel(check=False)
            while time.monotonic() < until and not all(job.done() for job in jobs.values()):
                time.sleep(0.05)

    def _submitted(self, executor: Any, owing: Sequence[Path], data: str | None) -> dict[Path, Any]:
        """Submit one array with a job for each of these shards. Raises UserError (exit code 3) where it is rejected."""
        data = None if data is None else str(Path(data).absolute())
        work = [Work(shard.absolute(), self.stage_seconds, data) for shard in owing]
        try:
            return dict(zip(owing, executor.submit_array(work), strict=True))
        except (RuntimeError, OSError) as error:
            for shard in owing:
                if not (shard / "trials.jsonl").stat().st_size:  # so that the run can go on by another engine
                    safe_files.remove(shard)
            last = (hide(str(error)).strip().splitlines() or ["it does not say why"])[-1]
            raise UserError(f"nothing was submitted: {last}", hint="--resume submits again", exit_code=3) from error

    def _made(self, folder: Path) -> Any:
        """Return submitit's executor with our settings. Raises UserError for a setting that it does not know."""
        requeues = {f"{self.executor}_max_num_timeout": self.requeues}
        try:
            # a new folder for each call: submitit unpickles what it finds there, and anyone may have made a run folder
            below = (self.jobs_folder or folder) / secrets.token_hex(3)
            made = self.submitit.AutoExecutor(below, cluster=self.executor, **requeues)
            made.update_parameters(**self.settings)
        except OSError as error:
            hint = "slurm:folder=... is where submitit keeps its files; --resume submits again"
            raise UserError(f"cannot write to '{below}': {error.strerror}", hint=hint, exit_code=74) from error
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise UserError(f"submitit: {str(error).splitlines()[0]}", hint="its names, as slurm_NAME=value") from error
        return made


class Shards:
    """The run folders `shards/N` below a run folder, each with its plan, and the records that the run has of them."""

    def __init__(self, run: Path, plan: Sequence[Trial], done: Iterable[Record]) -> None:
        self.jobs_folder = run / "jobs"
        self._run = run
        self._plan = plan
        self._records: dict[Key, Record] = {record.key: record for record in done}
        self._firsts = {trial.case for trial in plan if trial.round == 1}
        self._offered: dict[Key, tuple[Record, Path]] = {}  # later rounds whose first is not known yet, and their shard
        self._sizes: dict[Path, int] = {}  # of what has been read
        for name in ("shards", "jobs"):
            store.refuse_link(run / name)
            (run / name).mkdir(exist_ok=True)
        folders = sorted(runs(run / "shards"), key=lambda folder: (len(folder.name), folder.name))
        for folder in folders:
            store.refuse_link(folder)
        self.plans = {folder: store.read_manifest(folder).plan for folder in folders}
        for record in self._records.values():  # what the jobs find must be the same
            if not record.case.is_predicted and record.environment and record.environment.device_name:
                _agreed(self.jobs_folder, record.case.device, record.environment)

    def deal(self, count: int) -> list[Path]:
        """Make at most `count` shards of owed trials that are in none; return all shards that owe trials."""
        owed = progress.owed(self._plan, self._records.values(), perhaps=True)
        placed = {trial.key: folder for folder, plan in self.plans.items() for trial in plan}
        new = [trial for trial in owed if trial.key not in placed]
        manifest, first = store.read_manifest(self._run), len(self.plans) + 1
        places = (manifest.shard.places if manifest.shard else ()) or range(len(manifest.plan))
        place_of = {trial.key: place for trial, place in zip(manifest.plan, places, strict=True)}
        sweep = manifest.shard.sweep if manifest.shard else schedule.digest(manifest.plan)
        known = [msgspec.structs.replace(trial, data_directory=None) for trial in informed(new, self._records)]
        dealt = [part for part in schedule.deal(known, count) if part]
        for number, part in enumerate(dealt, start=first):
            folder, plan = self._run / "shards" / str(number), tuple(known[index] for index in part)
            own = tuple(place_of[trial.key] for trial in plan)
            shard = Shard(index=number, count=first - 1 + len(dealt), places=own, sweep=sweep)
            store.create(
                folder, plan=plan, command=manifest.command, sources=manifest.sources,
                environment=manifest.environment, shard=shard,
            )  # fmt: skip
            self.plans[folder] = plan
            placed |= dict.fromkeys((trial.key for trial in plan), folder)
        owing = {placed[trial.key] for trial in owed}
        return [folder for folder in self.plans if folder in owing]

    def news(self, shard: Path, *, why_over: str | None = None) -> Iterator[Record]:
        """Yield the records that a job has written since, as far as the job would not run their trials again.

        A later round comes after its first round, and only if that is ok. Once the job is over, what it left undone
        has crashed, for the reason `why_over`.
        """
        size = (shard / "trials.jsonl").stat().st_size
        if why_over is not None or size != self._sizes.get(shard):
            self._sizes[shard] = size
            records = store.load(shard).records
            found = progress.settled(records) if why_over is None else latest(records)
            undone = progress.owed(self.plans[shard], found) if why_over is not None else ()
            found += [lost(trial, "crashed", why_over or "") for trial in undone]
            self._offered |= {record.key: (record, shard) for record in found}
        for key, (record, written) in sorted(self._offered.items(), key=lambda offer: offer[0][1]):
            first = self._records.get((record.case, 1))
            if record.round > 1 and record.case in self._firsts and first is None:
                continue
            del self._offered[key]
            if key not in self._records and (record.round == 1 or first is None or first.outcome == "ok"):
                self._records[key] = record
                log = written / "logs" / f"{store.log_name(record.key)}.log"
                with suppress(OSError):  # what was printed is no reason to lose a result
                    if safe_files.is_regular(log):
                        (self._run / "logs").mkdir(exist_ok=True)
                        shutil.copyfile(log, self._run / "logs" / log.name)
                yield record


@dataclass
class Work:
    """What a job runs: all that its shard owes. A job that is queued again when its time is up goes on with it."""

    shard: Path
    stage_seconds: float
    data_directory: str | None

    def __call__(self) -> None:
        """Run what is owed on this machine. Raises UserError if it has another device than the first job's.

        The first job of a run writes its device to the folder `jobs`, for all others to have the same.
        """
        writer = Writer(self.shard)
        try:
            run = store.load(self.shard)
            with Local(stage_seconds=self.stage_seconds, logs=self.shard / "logs") as engine:
                devices, cases = engine.survey(), [trial.case for trial in run.manifest.plan]
                for device in dict.fromkeys(case.device for case in cases if not case.is_predicted):
                    if device not in devices:
                        raise UserError(f"this node has no '{device}': torch sees {', '.join(devices)}")
                    agreed = _agreed(self.shard.parents[1] / "jobs", device, devices[device])
                    first = msgspec.structs.replace(run.manifest, environment=agreed)
                    sources = store.code_digests(cases)
                    if changes := store.changes(first, environment=devices[device], sources=sources):
                        hint = "ask for one kind of node, as constraint=NAME does"
                        raise UserError(f"this node is not as the first of the run: {'; '.join(changes)}", hint=hint)
                plan = [
                    msgspec.structs.replace(trial, data_directory=self.data_directory) for trial in run.manifest.plan
                ]
                for record in engine.run(plan, progress.settled(run.records)):
                    writer.append(record)
        finally:
            writer.close()

    def checkpoint(self) -> Any:
        """Return what is submitted again when the time of a job is up; submitit calls the method by this name."""
        return load_module("submitit").helpers.DelayedSubmission(self)


def _agreed(folder: Path, device: str, mine: Environment) -> Environment:
    """Return what was first written for the device, perhaps by this call."""
    path = folder / f"{device.replace(':', '-')}.json"
    new = safe_files.beside(path)
    new.write_bytes(encode(mine))
    with suppress(FileExistsError):
        os.link(new, path)  # atomic, and by one job alone
    new.unlink()
    first: Environment = decode(path.read_bytes(), Environment)
    return first


def _why_over(job: Any) -> str:
    """Return what became of a job, with the last line of its traceback; None is a job of an earlier call."""
    if job is None:
        return "not done when its job ended"
    raised = job.exception() if job.paths.result_pickle.exists() else None
    lines = str(raised).split(RULE)[:2][-1].strip().splitlines() if raised else []
    return hide(", ".join([f"not done when its job ended: job {job.job_id} {job.state}", *lines[-1:]]))
