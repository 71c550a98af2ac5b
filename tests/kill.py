"""Whether a result that was printed can be lost, and a process be left behind: `just bench-kill`.

Ends `gcprof run` by kill -9 at random moments, uniform over the time that a whole run takes: in the import of torch, in
trials, while files are written. After each kill all that was printed must be in trials.jsonl, and no process of the
run may live two seconds longer, or as many times that as processes share a core. The same run is resumed and killed
until it is complete, and then a new one begins; at the end each must hold every trial of its plan once, with the bytes
of a run that nobody disturbed. Then the same number of its workers is killed: `tests/kill_worker.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from profiler.analysis import progress
from profiler.core.errors import UserError
from profiler.runs import store
from profiler.runs.store import Run
from tests import kill_worker, killed
from tests.killed import PATIENCE_SECONDS, SWEEP, Key, differences, printed, stored, survivors, violations

WORKERS = 2  # at a time


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
    parser = argparse.ArgumentParser(description="kill -9 of gcprof run, and of its workers, at random moments")
    parser.add_argument("--times", type=int, default=50, help="kills of the parent, and then of a worker")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcprof-kill-") as folder:
        peer, seconds = killed.undisturbed(Path(folder) / "undisturbed", SWEEP)
        print(f"an undisturbed run of {len(peer.records)} trials takes {seconds:.1f} s", flush=True)
        with ThreadPoolExecutor(WORKERS) as pool:
            shares = [asked.times // WORKERS + (number < asked.times % WORKERS) for number in range(WORKERS)]
            moments = [random.Random(asked.seed + number) for number in range(WORKERS)]
            own = [Path(folder) / f"{number}" for number in range(WORKERS)]
            parents = pool.map(lambda *one: _work(one[0], peer, seconds, *one[1:]), own, shares, moments)
            kills = [kill for found in parents for kill in found]
            own = [Path(folder) / f"worker-{number}" for number in range(WORKERS)]
            workers = pool.map(lambda *one: kill_worker.work(one[0], peer, seconds, *one[1:]), own, shares, moments)
            sessions = [session for found in workers for session in found]
    return _summary(kills, sessions)


def kill(folder: Path, sweep: tuple[str, ...], *, after: float, patience: float | None = None) -> Kill:
    """Start the run, or resume it, end it by kill -9 after some seconds, and look at what is left."""
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    before = stored(folder)
    with tempfile.TemporaryFile() as errors:
        process = killed.started(folder, sweep, tag=tag, errors=errors)
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = survivors(tag, patience=PATIENCE_SECONDS * killed.share() if patience is None else patience)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    by_itself = process.returncode != -9
    told, found = printed(said), stored(folder)
    wrong = violations(told, before=before, found=found)
    wrong += [f"process {one.pid} lives on" for one in left]
    wrong += [f"exit code {process.returncode}: {said.splitlines()[-1:]}"] if by_itself and process.returncode else []
    return Kill(None if by_itself else after, _phase(said, folder), told, found, wrong)


def finish(folder: Path, sweep: tuple[str, ...], peer: Run) -> list[str]:
    """Resume a run to its end where it is not there yet; what is wrong with it then."""
    if len(stored(folder)) < len(peer.records) or not (folder / "derived" / "frontier.png").exists():
        last = kill(folder, sweep, after=600.0)
        if last.after is not None or last.wrong:
            return [f"the last resume: {last}"]
    return differences(store.load(folder), peer)


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


def _summary(kills: list[Kill], sessions: list[kill_worker.Session]) -> int:
    died = Counter(one.phase for one in kills if one.after is not None)
    victims = Counter(victim for one in sessions for victim in one.victims)
    wrong = list(chain(*(one.wrong for one in kills), *(one.wrong for one in sessions)))
    whole = sum(one.phase == "whole" for one in kills) + sum(one.is_whole for one in sessions)
    for text in wrong:
        print(f"  {text}")
    told = f"{_counted(died, 'parent', 'in')}; {_counted(victims, 'worker', 'of the')}"
    print(f"{told}; {whole} runs finished and compared; {len(wrong)} violations")
    return int(bool(wrong))


def _counted(found: Counter[str], whom: str, where: str) -> str:
    parts = ", ".join(f"{number} {where} {what}" for what, number in found.most_common())
    return f"{found.total()} kills of the {whom} ({parts})"


if __name__ == "__main__":
    sys.exit(main())
