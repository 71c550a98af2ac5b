"""Kills the workers of a run at random moments, its trials and now and then its fork server; the run must go on.

What is killed is a `crashed` record, printed and stored like any other. The run is resumed, which measures such trials
again, and its workers killed again; in the end it must be the run that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from profiler.analysis import progress
from profiler.runs import store
from profiler.runs.store import Run
from tests import killed
from tests.killed import SWEEP, Key

KILLS = 8  # in the time of an undisturbed run, at least: between two passes an eighth of it at most
SERVERS = 0.1  # of the kills
SESSION_SECONDS = 600.0  # a run that takes longer hangs
DETAILS = ("killed in ", "lost in ")  # how the record of a killed trial begins


class Session(NamedTuple):
    """One start of the program to its end."""

    victims: list[str]  # "trial" or "server"
    printed: list[Key]
    wrong: list[str]
    is_whole: bool = False

    def __str__(self) -> str:
        what = "whole" if self.is_whole else f"{len(self.victims):3} workers killed"
        return f"{what:22} printed {len(self.printed):3}  {'; '.join(self.wrong) or 'fine'}"


def work(folder: Path, peer: Run, seconds: float, times: int, moments: random.Random) -> list[Session]:
    """Kill so many workers, over as many starts of the run as it takes; then finish it and compare it with the peer.

    `seconds` is what an undisturbed run takes.
    """
    sessions: list[Session] = []
    while times > 0:
        run = folder / f"{len(sessions)}"
        while times > 0 and not _is_over(run):
            sessions.append(session(run, SWEEP, times, moments, gap=seconds / KILLS))
            times -= len(sessions[-1].victims)
            print(f"{folder.name}/{run.name} {sessions[-1]}", flush=True)
        sessions.append(finish(run, SWEEP, peer, moments))
        print(f"{folder.name}/{run.name} {sessions[-1]}", flush=True)
    return sessions


def session(folder: Path, sweep: tuple[str, ...], times: int, moments: random.Random, *, gap: float = 1.0) -> Session:
    """Start the run, or resume it, and kill at most so many of its workers; what is wrong when it has ended.

    `gap` is the most seconds between two kills.
    """
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    before = len(killed.stored(folder))
    victims: list[str] = []
    with tempfile.TemporaryFile() as errors:
        process = killed.started(folder, sweep, tag=tag, errors=errors)
        while process.poll() is None and len(victims) < times:
            time.sleep(moments.uniform(0, gap))
            victims += _kill_one(process.pid, is_server=moments.random() < SERVERS)
        code = process.wait(timeout=SESSION_SECONDS)
        left = killed.survivors(tag, patience=killed.PATIENCE_SECONDS * killed.share())
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    told = killed.printed(said)
    wrong = violations(folder, told, before=before, num_victims=len(victims), code=code)
    return Session(victims, told, wrong + [f"process {one.pid} lives on" for one in left])


def violations(folder: Path, told: list[Key], *, before: int, num_victims: int, code: int) -> list[str]:
    """What is wrong after a run of which workers were killed: it ends by itself, and a kill is one crash at most."""
    if not (folder / "manifest.json").exists():  # the worker that looks for devices was killed
        return [] if (code, told) == (3, []) else [f"exit code {code} without a run folder"]
    run = store.load(folder)
    new = run.records[before:]
    crashed = [record for record in new if record.outcome == "crashed"]
    wrong = [] if killed.stored(folder)[before:] == told else [f"{len(told)} printed, and {len(new)} stored"]
    wrong += [] if len(crashed) <= num_victims else [f"{len(crashed)} crashed, and {num_victims} were killed"]
    wrong += [f"{one.outcome}: {one.detail}" for one in new if one.outcome not in ("ok", "crashed")]
    wrong += [f"crashed: {one.detail}" for one in crashed if not str(one.detail).startswith(DETAILS)]
    wrong += ["the run did not go on"] if progress.owed(run.manifest.plan, run.records) and new else []
    expected = (3,) if not new else (progress.exit_code(run.records),)
    return wrong + ([] if code in expected else [f"exit code {code} is not {expected}"])


def finish(folder: Path, sweep: tuple[str, ...], peer: Run, moments: random.Random) -> Session:
    """Go on with the run, undisturbed, and compare it with the peer."""
    last = session(folder, sweep, 0, moments) if not _is_over(folder) else Session([], [], [])
    return last._replace(wrong=last.wrong + killed.differences(killed.settled(folder), peer), is_whole=True)


def _is_over(folder: Path) -> bool:
    """Whether all that was planned is there, and nothing would be measured again."""
    if not (folder / "manifest.json").exists():
        return False
    run = store.load(folder)
    return not progress.owed(run.manifest.plan, progress.settled(run.records))


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
