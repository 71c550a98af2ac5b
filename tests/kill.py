"""Whether a result that was printed can be lost, and a process be left behind: `just bench-kill`.

Ends `gcprof run` by kill -9 at random moments, uniform over the time that a whole run takes: in the import of torch, in
trials, while files are written. After each kill all that was printed must be in trials.jsonl, and no process of the
run may live two seconds longer, or as many times that as processes share a core. The same run is resumed and killed
until it is complete, and then a new one begins; at the end each must hold every trial of its plan once, with the bytes
of a run that nobody disturbed. Then the same number of workers is killed, trials and now and then their fork server: a
`crashed` record is printed and stored like any other, the run goes on by itself, and a resume measures the trial again.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from profiler.analysis import progress
from profiler.analysis.rows import latest
from profiler.runs import store
from profiler.runs.store import Run
from tests.killed import PATIENCE_SECONDS, TAG, Key, printed, python_path, survivors

SWEEP = ("--model", "mlp", "--segments", "1..5", "--rounds", "4", "--samples", "3", "--device", "cpu")
AT_ONCE = 2  # runs
KILLS = 8  # of workers in the time of an undisturbed run, at least: between two passes an eighth of it at most
SERVERS = 0.1  # of the kills of workers
SESSION_SECONDS = 600.0  # a run that takes longer hangs
DETAILS = ("killed in ", "lost in ")  # how the record of a killed trial begins


class Session(NamedTuple):
    """One start of the program to its end: what was killed, and what is wrong then."""

    victims: list[str]
    printed: list[Key]
    wrong: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of gcprof run, and of its workers, at random moments")
    parser.add_argument("--times", type=int, default=50, help="kills of the parent, and then of a worker")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcprof-kill-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        subprocess.run(words(Path(folder) / "undisturbed", SWEEP), check=True, env=environment(""), capture_output=True)
        peer, seconds = store.load(Path(folder) / "undisturbed"), time.monotonic() - began
        print(f"an undisturbed run of {len(peer.records)} trials takes {seconds:.1f} s", flush=True)

        def work(kind: str, number: int) -> list[Session]:
            times = asked.times // AT_ONCE + (number < asked.times % AT_ONCE)
            moments = random.Random(asked.seed + number)
            return list(sessions(kind, Path(folder) / f"{kind}-{number}", peer, seconds, times, moments))

        jobs = [(kind, number) for kind in ("parent", "worker") for number in range(AT_ONCE)]
        done = [one for found in pool.map(work, *zip(*jobs, strict=True)) for one in found]
    wrong = [text for one in done for text in one.wrong]
    for text in wrong:
        print(f"  {text}")
    victims = Counter(victim for one in done for victim in one.victims)
    told = ", ".join(f"{number} of the {what}" for what, number in victims.most_common())
    print(f"{told}; {len(wrong)} violations")
    return int(bool(wrong))


def sessions(
    kind: str, folder: Path, peer: Run, seconds: float, times: int, moments: random.Random
) -> Iterator[Session]:
    """Kill and resume until there were so many kills, over as many runs as it takes; finish and compare each run."""
    for run in (folder / f"{number}" for number in count()):
        while times > 0 and not _is_over(run) and not _is_half_made(run):
            if kind == "parent":
                one = kill(run, SWEEP, after=moments.uniform(0, seconds))
            else:
                one = kill_workers(run, SWEEP, times, moments, gap=seconds / KILLS)
            times -= len(one.victims)
            print(f"{folder.name}/{run.name}", *one, flush=True)
            yield one
        if not _is_half_made(run):  # else it was killed while it made the folder, and the name is taken
            yield Session([], [], finish(run, SWEEP, peer, kind=kind))
        if times <= 0:
            return


def kill(folder: Path, sweep: tuple[str, ...], *, after: float, patience: float | None = None) -> Session:
    """Start the run, or resume it, end it by kill -9 after some seconds, and look at what is left."""
    before = stored(folder)

    def end(process: subprocess.Popen[bytes]) -> list[str]:
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            return ["parent"]
        return []

    victims, code, said, wrong = _disturbed(folder, sweep, end, patience)
    told, found = printed(said), stored(folder)
    wrong += [f"{' '.join(map(str, key))} was printed or stored, and is lost" for key in {*told, *before} - {*found}]
    wrong += [f"{' '.join(map(str, key))} is there {n} times" for key, n in Counter(found).items() if n > 1]
    wrong += [f"exit code {code}: {said.splitlines()[-1:]}"] if code and not victims else []
    return Session(victims, told, wrong)


def kill_workers(folder: Path, sweep: tuple[str, ...], times: int, moments: random.Random, *, gap: float) -> Session:
    """Start the run, or resume it, and kill at most so many of its workers, within `gap` seconds of each other.

    It must end by itself, and a kill is one crash at most.
    """
    before = len(stored(folder))

    def disturb(process: subprocess.Popen[bytes]) -> list[str]:
        victims: list[str] = []
        while process.poll() is None and len(victims) < times:
            time.sleep(moments.uniform(0, gap))
            victims += _kill_one(process.pid, is_server=moments.random() < SERVERS)
        return victims

    victims, code, said, wrong = _disturbed(folder, sweep, disturb, None)
    told = printed(said)
    if not (folder / "manifest.json").exists():  # the worker that looks for devices was killed
        wrong += [] if (code, told) == (3, []) else [f"exit code {code} without a run folder"]
        return Session(victims, told, wrong)
    run = store.load(folder)
    new = run.records[before:]
    crashed = [record for record in new if record.outcome == "crashed"]
    wrong += [] if stored(folder)[before:] == told else [f"{len(told)} printed, and {len(new)} stored"]
    wrong += [] if len(crashed) <= len(victims) else [f"{len(crashed)} crashed, and {len(victims)} were killed"]
    wrong += [f"{one.outcome}: {one.detail}" for one in new if one.outcome not in ("ok", "crashed")]
    wrong += [f"crashed: {one.detail}" for one in crashed if not str(one.detail).startswith(DETAILS)]
    wrong += ["the run did not go on"] if progress.owed(run.manifest.plan, run.records) and new else []
    expected = progress.exit_code(run.records) if new else 3
    return Session(victims, told, wrong + ([] if code == expected else [f"exit code {code} is not {expected}"]))


def finish(folder: Path, sweep: tuple[str, ...], peer: Run, *, kind: str = "parent") -> list[str]:
    """Resume a run to its end where it is not there yet; what is wrong with it then."""
    last = Session([], [], [])
    if kind == "worker":
        last = last if _is_over(folder) else kill_workers(folder, sweep, 0, random.Random(), gap=0.0)
    elif not _is_over(folder) or not (folder / "derived" / "frontier.png").exists():
        last = kill(folder, sweep, after=SESSION_SECONDS)
    if last.victims or last.wrong:
        return [f"the last resume: {last}"]
    run = store.load(folder)
    if kind == "worker":  # the last record of each trial alone: what readers see
        run = msgspec.structs.replace(run, records=tuple(latest(run.records)))
    return differences(run, peer)


def differences(run: Run, peer: Run) -> list[str]:
    """Trials that are not there exactly once, as in the peer, or whose exact quantities are not those of the peer."""
    found, expected = _exact(run), _exact(peer)
    there, planned = (Counter(name for name, _ in one) for one in (found, expected))
    wrong = [f"{name} is owed" for name in planned - there] + [f"{name} is there again" for name in there - planned]
    wrong += [f"{path.name} was left in the making" for path in run.folder.rglob(".*")]
    return wrong + [f"{name}: {exact} is not as in the peer" for name, exact in set(found) - set(expected)]


def _exact(run: Run) -> list[tuple[str, tuple[object, ...]]]:
    """What must be the same in every run, by trial."""
    return [
        (
            f"{one.case.strategy} round {one.round}",
            (
                one.outcome, one.readings.peak_bytes, one.readings.saved_bytes, str(one.readings.static_bytes),
                one.equality and one.equality.gradients_equal,
            ),
        )
        for one in run.records
    ]  # fmt: skip


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


Disturb = Callable[[subprocess.Popen[bytes]], list[str]]  # kills, and returns what it killed


def _disturbed(
    folder: Path, sweep: tuple[str, ...], disturb: Disturb, patience: float | None
) -> tuple[list[str], int, str, list[str]]:
    """What was killed of a run, its exit code, what it said, and which of its processes live on."""
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words(folder, sweep),
            env=environment(tag),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        victims = disturb(process)
        code = process.wait(timeout=SESSION_SECONDS)
        share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # of a core
        left = survivors(tag, patience=PATIENCE_SECONDS * share if patience is None else patience)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    return victims, code, said, [f"process {one.pid} lives on" for one in left]


def _kill_one(parent: int, *, is_server: bool) -> list[str]:
    """Kill the trial at work, or the server that it comes from; nothing where there is no trial at this moment."""
    try:
        servers = psutil.Process(parent).children()
        trials = [trial for server in servers for trial in server.children()]
        if not trials:
            return []
        (servers if is_server else trials)[0].kill()
    except psutil.NoSuchProcess:  # it ended meanwhile
        return []
    return ["server" if is_server else "trial"]


def _is_over(folder: Path) -> bool:
    """Whether all that was planned is there, and nothing would be measured again."""
    if not (folder / "manifest.json").exists():
        return False
    run = store.load(folder)
    return not progress.owed(run.manifest.plan, progress.settled(run.records))


def _is_half_made(folder: Path) -> bool:
    return folder.exists() and not (folder / "manifest.json").exists()


if __name__ == "__main__":
    sys.exit(main())
