"""The shards of a run below its folder, and the jobs that write them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler.core import safe_files, schedule
from profiler.core.case import Case, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.core.schedule import Shard
from profiler.core.secret_filter import hide
from profiler.engines.order import informed
from profiler.engines.slurm_results import Gathered, ShardFolder
from profiler.runs import find, store
from profiler.runs.store import Manifest
from profiler.runs.writer import Writer

LATE_SECONDS = 60.0  # until a shared file system shows what another node wrote before its job ended
IDS_BYTES = 1 << 20  # of the file of job ids: enough for thousands of jobs
RULE = "-" * 22  # encloses the traceback in the message of submitit's error
Key = tuple[Case, int]


class Array:
    """The folders below a run folder: `shards/N`, a run folder that one job writes, and `jobs`, with the job ids."""

    def __init__(self, run: Path, gathered: Gathered) -> None:
        self.jobs_folder = run / "jobs"
        self._run = run
        self._gathered = gathered
        self._following: list[tuple[ShardFolder, Any]] = []
        self._own: list[Any] = []  # the jobs of this call: only their results are unpickled
        self._where: dict[Key, Path] = {}  # the folder of the last shard that a trial is in
        for name in ("shards", "jobs"):
            store.refuse_link(run / name)
            (run / name).mkdir(exist_ok=True)

    def left_before(self, active: Callable[[str], Any]) -> Iterator[Record]:
        """Yield the records of jobs of earlier calls; jobs that still run are followed with the new ones.

        `active` returns the job of an id if it still runs. Raises UserError if an unknown process writes to a shard.
        """
        ids = self._ids()
        for folder in self._folders():
            job = active(ids[folder.name]) if folder.name in ids else None
            if job is None:
                Writer(folder).close()  # refuses a folder that is being written, and cuts off a killed job's torn line
            part = self._part(folder)
            part.look()
            if job is not None:
                self._following.append((part, job))
            yield from self._given(part.standing())

    def at_work(self) -> set[Key]:
        """Return the trials of the jobs that are followed."""
        return {(trial.case, trial.round) for part, _ in self._following for trial in part.plan}

    def submit(self, owed: Sequence[Trial], count: int, send: Callable[[list[Path]], list[Any]]) -> None:
        """Make at most `count` shards of owed trials; pass their folders to `send`, which returns a job for each."""
        folders = self._made([self._informed(trial) for trial in owed], count)
        try:
            jobs = send(folders)
        except UserError:
            for folder in folders:
                safe_files.remove(folder)
            raise
        self._following += zip(map(self._part, folders), jobs, strict=True)
        self._own += jobs
        ids = self._ids() | {folder.name: job.job_id for folder, job in zip(folders, jobs, strict=True)}
        store.replace(self.jobs_folder / "ids.json", json.dumps(ids, indent=1).encode())

    def follow(self, pause: float) -> Iterator[Record]:
        """Yield the records of all jobs as they appear, until the last job has ended."""
        while self._following:
            for part, job in tuple(self._following):
                is_over = job.done()  # asked before reading, so that all that it wrote is read
                part.look()
                if is_over:
                    self._following.remove((part, job))
                    result = _result(job) if job in self._own else None
                    _await_late(part, result)
                    part.lose(hide(f"not done when its job ended: job {job.job_id} {job.state}{_raised(result)}"))
                yield from self._given(part.final() if is_over else part.standing())
            if self._following:
                time.sleep(pause)

    def cancel(self, *, grace: float) -> None:
        """Cancel the jobs of this call that are still followed, and wait at most `grace` seconds for them.

        Jobs of an earlier call are left alone: their ids are from a file that anyone may have made or copied.
        """
        until = time.monotonic() + grace
        own = [job for _, job in self._following if job in self._own]
        for job in own:
            job.cancel(check=False)
        while time.monotonic() < until and not all(job.done() for job in own):
            time.sleep(0.05)

    def _folders(self) -> list[Path]:
        folders = [path for path in find.runs(self._run / "shards") if path.name.isdecimal()]
        for path in folders:
            store.refuse_link(path)
        return sorted(folders, key=lambda path: int(path.name))

    def _part(self, folder: Path) -> ShardFolder:
        part = ShardFolder(folder)
        self._where |= {(trial.case, trial.round): folder for trial in part.plan}
        return part

    def _informed(self, trial: Trial) -> Trial:
        """Add what is known of its baseline to a trial of a first round; later rounds are not compared with it."""
        if trial.round > 1:
            return trial
        return informed([trial], self._gathered.records, is_predicted=trial.case.is_predicted)[0]

    def _made(self, trials: list[Trial], count: int) -> list[Path]:
        manifest, before = store.read_manifest(self._run), self._folders()
        places, first = _places(manifest), int(before[-1].name) + 1 if before else 1
        dealt = [part for part in schedule.deal(trials, count) if part]
        sweep = manifest.shard.sweep if manifest.shard else schedule.digest(manifest.plan)
        folders = []
        for number, part in enumerate(dealt, start=first):
            plan = tuple(msgspec.structs.replace(trials[index], data_directory=None) for index in part)
            mine = tuple(places[trial.case, trial.round] for trial in plan)
            store.create(
                self._run / "shards" / str(number), plan=plan, command=manifest.command, sources=manifest.sources,
                environment=manifest.environment,
                shard=Shard(index=number, count=first - 1 + len(dealt), places=mine, sweep=sweep),
            )  # fmt: skip
            folders.append(self._run / "shards" / str(number))
        return folders

    def _ids(self) -> dict[str, str]:
        """Return the job id of each shard, as far as ids.json has it."""
        try:
            with safe_files.opened(self.jobs_folder / "ids.json", most_bytes=IDS_BYTES) as file:
                jobs = msgspec.json.decode(file.read(), type=dict[str, str])
                return {part: job for part, job in jobs.items() if re.fullmatch(r"\d+(_\d+)?", job, flags=re.ASCII)}
        except (OSError, msgspec.DecodeError):
            return {}

    def _given(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in self._gathered.news(records):
            self._take_log(record)
            yield record

    def _take_log(self, record: Record) -> None:
        name = f"{store.log_name(record.case, record.round)}.log"
        log = self._where[record.case, record.round] / "logs" / name
        try:
            if safe_files.is_regular(log):
                (self._run / "logs").mkdir(exist_ok=True)
                with safe_files.opened(log) as file, safe_files.anew(self._run / "logs" / name) as copy:
                    shutil.copyfileobj(file, copy)
        except OSError:  # what was printed is no reason to lose a result
            return


def write_agreed(folder: Path, records: Iterable[Record]) -> None:
    """Write the device on which records of the run were measured, if any, for the jobs to compare theirs with."""
    for record in records:
        device = record.case.device
        path = folder / f"{device.replace(':', '-')}.json"
        environment = record.environment
        if not record.case.is_predicted and environment and environment.device_name and not path.exists():
            store.replace(path, encode(environment))


def _places(manifest: Manifest) -> dict[Key, int]:
    """Return the index of each trial in the whole sweep, of which the run itself may be a shard."""
    places = (manifest.shard.places if manifest.shard else ()) or range(len(manifest.plan))
    return {(trial.case, trial.round): place for trial, place in zip(manifest.plan, places, strict=True)}


def _result(job: Any) -> int | Exception | None:
    """Return how many trials a job has records of, or what it raised; None where it left neither."""
    if not job.paths.result_pickle.exists():
        return None
    error: Exception | None = job.exception()
    return int(job.result()) if error is None else error


def _await_late(part: ShardFolder, result: int | Exception | None) -> None:
    """Wait until all records of a job can be read, at most LATE_SECONDS."""
    until = time.monotonic() + LATE_SECONDS
    while isinstance(result, int) and len(part.final()) < result and time.monotonic() < until:
        time.sleep(0.5)
        part.look()


def _raised(result: int | Exception | None) -> str:
    """Return the last line of the traceback in the message of submitit's error."""
    if not isinstance(result, Exception):
        return ""
    lines = (str(result).split(RULE)[1:2] or [str(result)])[0].strip().splitlines()
    return f", {lines[-1]}" if lines else ""
