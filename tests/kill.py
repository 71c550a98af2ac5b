"""Whether a result that was printed can be lost, and a process be left behind: `just bench-kill`.

Ends `gcprof run` by kill -9 at random moments, uniform over the time that a whole run takes: in the import of torch, in
trials, while files are written. After each kill all that was printed must be in trials.jsonl, and no process of the
run may live two seconds longer, or as many times that as processes share a core. The same run is resumed and killed
until it is complete, and then a new one begins; at the end each must hold every trial of its plan once, with the bytes
of a run that nobody disturbed. That a killed trial or server costs one trial alone: tests/faults.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

from profiler.runs import store
from profiler.runs.store import Run
from tests.program import AFTERWARDS_SECONDS, TAG, Key, printed, python_path, survivors

SWEEP = ("--model", "mlp", "--segments", "1..5", "--rounds", "4", "--samples", "3", "--device", "cpu")
AT_ONCE = 2  # runs
SESSION_SECONDS = 600.0  # a run that takes longer hangs


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of gcprof run at random moments")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcprof-kill-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        subprocess.run(words(Path(folder) / "undisturbed", SWEEP), check=True, env=environment(""), capture_output=True)
        peer, seconds = store.load(Path(folder) / "undisturbed"), time.monotonic() - began
        print(f"an undisturbed run of {len(peer.records)} trials takes {seconds:.1f} s", flush=True)

        def work(number: int) -> list[str]:
            times = asked.times // AT_ONCE + (number < asked.times % AT_ONCE)
            return list(sessions(Path(folder) / str(number), peer, seconds, times, random.Random(asked.seed + number)))

        wrong = [text for found in pool.map(work, range(AT_ONCE)) for text in found]
    print(*wrong, f"{asked.times} kills; {len(wrong)} violations", sep="\n")
    return int(bool(wrong))


def sessions(folder: Path, peer: Run, seconds: float, times: int, moments: random.Random) -> Iterator[str]:
    """Kill and resume so many times, over as many runs as it takes, each of which is finished; what is wrong."""
    for run in (folder / f"{number}" for number in count()):
        is_half_made = False  # killed while it made the folder: the name is taken
        while times > 0 and not is_half_made and len(stored(run)) < len(peer.records):
            wrong = kill(run, SWEEP, after=moments.uniform(0, seconds))
            times -= 1
            print(f"{folder.name}/{run.name}: {wrong or 'fine'}", flush=True)
            yield from wrong
            is_half_made = run.exists() and not (run / "manifest.json").exists()
        if not is_half_made:
            yield from finish(run, SWEEP, peer)
        if times <= 0:
            return


def kill(folder: Path, sweep: tuple[str, ...], *, after: float, patience: float | None = None) -> list[str]:
    """Start the run, or resume it, end it by kill -9 after some seconds, and look at what is left: what is wrong."""
    before, tag = stored(folder), f"{os.getpid()}-{random.getrandbits(64):x}"
    with tempfile.TemporaryFile() as errors:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        code = 0
        with suppress(subprocess.TimeoutExpired):  # whose process is killed then
            code = subprocess.call(words(folder, sweep), timeout=after, env=environment(tag), stderr=errors, **quiet)
        share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # of a core
        left = survivors(tag, patience=AFTERWARDS_SECONDS * share if patience is None else patience)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    told, found = printed(said), stored(folder)
    wrong = [f"process {one.pid} lives on" for one in left]
    wrong += [f"{' '.join(map(str, key))} was printed or stored, and is lost" for key in {*told, *before} - {*found}]
    wrong += [f"{' '.join(map(str, key))} is there {n} times" for key, n in Counter(found).items() if n > 1]
    return wrong + ([f"exit code {code}: {said.splitlines()[-1:]}"] if code else [])


def finish(folder: Path, sweep: tuple[str, ...], peer: Run) -> list[str]:
    """Resume a run to its end; what is wrong with it, beside a peer that nobody disturbed."""
    wrong = kill(folder, sweep, after=SESSION_SECONDS)
    found, expected = _exact(store.load(folder)), _exact(peer)
    wrong += [f"{exact} is not as in the peer" for exact in found - expected]
    wrong += [f"{exact} is owed" for exact in expected - found]
    return wrong + [f"{path.name} was left in the making" for path in folder.rglob(".*")]


def _exact(run: Run) -> Counter[tuple[object, ...]]:
    """What must be the same in every run, of each trial once."""
    return Counter(
        (
            str(one.case.strategy), one.round, one.outcome, one.readings.peak_bytes, one.readings.saved_bytes,
            str(one.readings.static_bytes), one.equality and one.equality.gradients_equal,
        )
        for one in run.records
    )  # fmt: skip


def stored(folder: Path) -> list[Key]:
    """The trials that a run folder holds; none where it was not even made."""
    if not (folder / "manifest.json").exists():
        return []
    return [(str(one.case.model), str(one.case.strategy), one.round) for one in store.load(folder).records]


def words(folder: Path, sweep: tuple[str, ...]) -> list[str]:
    """The program's command line: a new run, or to go on with the one that is there."""
    there = (folder / "manifest.json").exists()
    which = ["--resume", str(folder)] if there else [*sweep, "-o", str(folder)]
    return [sys.executable, "-m", "profiler", "run", *which]


def environment(tag: str) -> dict[str, str]:
    """This process's own, the tag by which the run's processes are found, and one thread: two runs share the cores."""
    return {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", TAG: tag}


if __name__ == "__main__":
    sys.exit(main())
