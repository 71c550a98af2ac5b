"""Whether a result that was printed can be lost, and a process be left behind: `just bench-kill`.

Ends `gcprof run` by kill -9 at random moments, uniform over the time that a whole run takes: in the import of torch, in
trials, while files are written. After each kill all that was printed must be in trials.jsonl, and no process of the
run may live two seconds longer. The same run is resumed and killed until it is complete, and then a new one begins; at
the end each must hold every trial of its plan once, with the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psutil

from profiler import store
from profiler.analysis import progress
from profiler.errors import UserError
from profiler.store import Run

ROOT = Path(__file__).parents[1]
SWEEP = ("--model", "mlp", "--segments", "1..5", "--rounds", "8", "--device", "cpu")
PATIENCE_SECONDS, WORKERS = 2.0, 2
TAG = "GCPROF_KILL_TAG"  # in the environment of a run, and so of every process that it starts

Key = tuple[str, str, int]  # model, strategy, round


class Kill(NamedTuple):
    """One run and its end; `after` is None where it came to its own end first."""

    after: float | None
    phase: str
    printed: list[Key]
    stored: list[Key]
    wrong: list[str]

    def __str__(self) -> str:
        end = "ended by itself" if self.after is None else f"killed after {self.after:5.2f} s"
        return (
            f"{end:22} {self.phase:8} printed {len(self.printed):3}  stored {len(self.stored):3}  "
            f"{'; '.join(self.wrong) or 'fine'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of gcprof run at random moments")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcprof-kill-") as folder:
        peer, seconds = undisturbed(Path(folder) / "undisturbed", SWEEP)
        print(f"an undisturbed run of {len(peer.records)} trials takes {seconds:.1f} s", flush=True)
        shares = [asked.times // WORKERS + (number < asked.times % WORKERS) for number in range(WORKERS)]
        with ThreadPoolExecutor(WORKERS) as pool:
            work = [
                pool.submit(_work, Path(folder) / f"{number}", peer, seconds, share, random.Random(asked.seed + number))
                for number, share in enumerate(shares)
            ]
            kills = [kill for one in work for kill in one.result()]
    return _summary(kills)


def undisturbed(folder: Path, sweep: tuple[str, ...]) -> tuple[Run, float]:
    """The run that the others are compared with, and the seconds that it took."""
    began = time.monotonic()
    subprocess.run(_words(folder, sweep), check=True, env=_environment("undisturbed"), capture_output=True)
    return store.load(folder), time.monotonic() - began


def kill(folder: Path, sweep: tuple[str, ...], *, after: float, patience: float = PATIENCE_SECONDS) -> Kill:
    """Start the run, or resume it, end it by kill -9 after some seconds, and look at what is left."""
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    before = stored(folder)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            _words(folder, sweep),
            env=_environment(tag),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = survivors(tag, patience=patience)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    by_itself = process.returncode != -9
    told, found = printed(said), stored(folder)
    wrong = violations(told, before=before, found=found)
    wrong += [f"process {one.pid} lives on" for one in left]
    wrong += [f"exit code {process.returncode}: {said.splitlines()[-1:]}"] if by_itself and process.returncode else []
    return Kill(None if by_itself else after, _phase(said, folder), told, found, wrong)


def violations(told: list[Key], *, before: list[Key], found: list[Key]) -> list[str]:
    """What of that which was printed, or stored before, is not stored exactly once."""
    wrong = [f"{' '.join(map(str, key))} was printed and is lost" for key in told if key not in found]
    wrong += [f"{' '.join(map(str, key))} is lost" for key in before if key not in found]
    return wrong + [f"{' '.join(map(str, key))} is there {n} times" for key, n in Counter(found).items() if n > 1]


def finish(folder: Path, sweep: tuple[str, ...], peer: Run) -> list[str]:
    """Resume a run to its end where it is not there yet; what is wrong with it then."""
    if len(stored(folder)) < len(peer.records) or not (folder / "derived" / "frontier.png").exists():
        last = kill(folder, sweep, after=600.0)
        if last.after is not None or last.wrong:
            return [f"the last resume: {last}"]
    return differences(store.load(folder), peer)


def differences(run: Run, peer: Run) -> list[str]:
    """Trials of the plan that are not there exactly once, or whose exact quantities are not those of the peer."""
    times = Counter((record.case, record.round) for record in run.records)
    planned = {(trial.case, trial.round) for trial in run.manifest.plan}
    owed = progress.owed(run.manifest.plan, run.records)
    wrong = [f"{trial.case.strategy} round {trial.round} is owed" for trial in owed]
    wrong += [f"{case.strategy} round {number} is there {n} times" for (case, number), n in times.items() if n > 1]
    wrong += [f"{case.strategy} round {number} is not planned" for case, number in times.keys() - planned]
    found, expected = _exact(run), _exact(peer)
    return wrong + [
        f"{key}: {found[key]} is not {expected.get(key)}" for key in found if found[key] != expected.get(key)
    ]


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


def tagged(tag: str) -> list[psutil.Process]:
    """All living processes that have the tag in their environment."""
    return [process for process in psutil.process_iter() if _has(process, tag)]


def _has(process: psutil.Process, tag: str) -> bool:
    try:
        return process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # it ended meanwhile, or is somebody else's
        return False


def _work(folder: Path, peer: Run, seconds: float, times: int, moments: random.Random) -> list[Kill]:
    """One worker: kill and resume until there were so many kills; then finish the run."""
    kills: list[Kill] = []
    for where in _folders(folder):
        while times and not _is_over(where, peer):
            one = kill(where, SWEEP, after=moments.uniform(0, seconds))
            times -= one.after is not None
            kills.append(one)
            print(f"{folder.name}/{where.name} {one}", flush=True)
            if one.after is not None and _is_half_made(where):
                break  # killed while it made the folder: nothing was printed, and the name is taken
        if not _is_half_made(where):
            wrong = finish(where, SWEEP, peer)
            kills.append(Kill(None, "whole", [], stored(where), wrong))
            print(f"{folder.name}/{where.name} {kills[-1]}", flush=True)
        if not times:
            return kills
    raise AssertionError("there is always another folder")


def _folders(folder: Path) -> Iterator[Path]:
    return (folder / f"{number}" for number in count())


def _is_over(folder: Path, peer: Run) -> bool:
    return len(stored(folder)) >= len(peer.records)


def _is_half_made(folder: Path) -> bool:
    return folder.exists() and not (folder / "manifest.json").exists()


def _words(folder: Path, sweep: tuple[str, ...]) -> list[str]:
    there = (folder / "manifest.json").exists()
    which = ["--resume", str(folder)] if there else [*sweep, "-o", str(folder)]
    return [sys.executable, "-m", "profiler", "run", *which]


def _environment(tag: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), TAG: tag}


def _phase(said: str, folder: Path) -> str:
    """Where a run was when it ended."""
    if "measuring the" not in said:
        return "start-up"
    if "wrote " in said:
        return "end"
    try:
        run = store.load(folder)
    except UserError:
        return "start-up"
    return "trials" if progress.owed(run.manifest.plan, run.records) else "files"


def _exact(run: Run) -> dict[str, tuple[object, ...]]:
    """What must be the same in every run, by trial."""
    return {
        f"{record.case.strategy} round {record.round}": (
            record.outcome,
            record.readings.peak_bytes,
            record.readings.saved_bytes,
            record.readings.static_bytes,
        )
        for record in run.records
    }


def _summary(kills: list[Kill]) -> int:
    died = [one for one in kills if one.after is not None]
    phases = Counter(one.phase for one in died)
    wrong = [text for one in kills for text in one.wrong]
    where = ", ".join(f"{number} in {phase}" for phase, number in phases.most_common())
    whole = sum(one.phase == "whole" for one in kills)
    print(f"{len(died)} kills ({where}); {whole} runs finished and compared; {len(wrong)} violations")
    for text in wrong:
        print(f"  {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
