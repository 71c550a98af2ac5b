"""A run of the real program that something ends: what it printed, what it stored, what of it lives on."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

import msgspec
import psutil

from profiler.analysis import progress
from profiler.analysis.rows import latest
from profiler.runs import store
from profiler.runs.store import Run

SWEEP = ("--model", "mlp", "--segments", "1..5", "--rounds", "4", "--samples", "3", "--device", "cpu")
PATIENCE_SECONDS = 2.0  # on a machine with a core for every process that works
ROOT = Path(__file__).parents[1]
TAG = "GCPROF_KILL_TAG"  # in the environment of a run, and so of every process that it starts

Key = tuple[str, str, int]  # model, strategy, round


def undisturbed(folder: Path, sweep: tuple[str, ...]) -> tuple[Run, float]:
    """The run that the others are compared with, and the seconds that it took."""
    began = time.monotonic()
    subprocess.run(words(folder, sweep), check=True, env=environment("undisturbed"), capture_output=True)
    return store.load(folder), time.monotonic() - began


def started(folder: Path, sweep: tuple[str, ...], *, tag: str, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """The run at work, or going on where it is there; the tag finds all of its processes."""
    return subprocess.Popen(
        words(folder, sweep),
        env=environment(tag),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def violations(told: list[Key], *, before: list[Key], found: list[Key]) -> list[str]:
    """What of that which was printed, or stored before, is not stored exactly once."""
    wrong = [f"{' '.join(map(str, key))} was printed and is lost" for key in told if key not in found]
    wrong += [f"{' '.join(map(str, key))} is lost" for key in before if key not in found]
    return wrong + [f"{' '.join(map(str, key))} is there {n} times" for key, n in Counter(found).items() if n > 1]


def differences(run: Run, peer: Run) -> list[str]:
    """Trials of the plan that are not there exactly once, or whose exact quantities are not those of the peer."""
    times = Counter((record.case, record.round) for record in run.records)
    planned = {(trial.case, trial.round) for trial in run.manifest.plan}
    owed = progress.owed(run.manifest.plan, run.records)
    wrong = [f"{trial.case.strategy} round {trial.round} is owed" for trial in owed]
    wrong += [f"{case.strategy} round {number} is there {n} times" for (case, number), n in times.items() if n > 1]
    wrong += [f"{case.strategy} round {number} is not planned" for case, number in times.keys() - planned]
    found, expected = _exact(run), _exact(peer)
    wrong += [f"{path.name} was left in the making" for path in run.folder.rglob(".*")]
    return wrong + [
        f"{key}: {found[key]} is not {expected.get(key)}" for key in found if found[key] != expected.get(key)
    ]


def settled(folder: Path) -> Run:
    """A run with the last record of each trial alone: what readers see of it."""
    run = store.load(folder)
    return msgspec.structs.replace(run, records=tuple(latest(run.records)))


def printed(said: str) -> list[Key]:
    """The trials that a run told as done, line by line; a torn last line was not told."""
    lines = [line for line in said.splitlines(keepends=True) if line.endswith("\n")]
    found = [re.match(r"\[ *\d+/\d+\] (\S+) (\S+) round (\d+): ", line) for line in lines]
    return [(match[1], match[2], int(match[3])) for match in found if match]


def stored(folder: Path) -> list[Key]:
    """The trials that a run folder holds; none where it was not even made."""
    if not (folder / "manifest.json").exists():
        return []
    records = store.load(folder).records
    return [(str(record.case.model), str(record.case.strategy), record.round) for record in records]


def survivors(tag: str, *, patience: float = PATIENCE_SECONDS) -> list[psutil.Process]:
    """The processes of a run that are still there after some seconds."""
    until = time.monotonic() + patience
    while (left := tagged(tag)) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def share() -> float:
    """How many processes share a core at present, at least one: what takes a second then takes so many."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def tagged(tag: str) -> list[psutil.Process]:
    """All living processes that have the tag in their environment."""
    return [process for process in psutil.process_iter() if _has(process, tag)]


def _has(process: psutil.Process, tag: str) -> bool:
    try:
        return process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # it ended meanwhile, or is somebody else's
        return False


def words(folder: Path, sweep: tuple[str, ...]) -> list[str]:
    """The program's command line: a new run, or to go on with the one that is there."""
    there = (folder / "manifest.json").exists()
    which = ["--resume", str(folder)] if there else [*sweep, "-o", str(folder)]
    return [sys.executable, "-m", "profiler", "run", *which]


def environment(tag: str) -> dict[str, str]:
    """This process's own, the tag by which the run's processes are found, and one thread: two runs share the cores."""
    return {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", TAG: tag}


def python_path() -> str:
    """PYTHONPATH for a process of a test: this one's, before it the repository's."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([own] if own else [])])


def _exact(run: Run) -> dict[str, tuple[object, ...]]:
    """What must be the same in every run, by trial."""
    return {
        f"{record.case.strategy} round {record.round}": (
            record.outcome,
            record.readings.peak_bytes,
            record.readings.saved_bytes,
            record.readings.static_bytes,
            record.equality and record.equality.gradients_equal,
        )
        for record in run.records
    }
