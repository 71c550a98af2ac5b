"""A run of the real program that something ends: what it printed, and what of it lives on."""

import os
import re
import time
from pathlib import Path

import psutil

PATIENCE_SECONDS = 2.0  # on a machine with a core for every process that works
ROOT = Path(__file__).parents[1]
TAG = "GCPROF_KILL_TAG"  # in the environment of a run, and so of every process that it starts

Key = tuple[str, str, int]  # model, strategy, round


def printed(said: str) -> list[Key]:
    """The trials that a run told as done, line by line; a torn last line was not told."""
    found = re.findall(r"^\[ *\d+/\d+\] (\S+) (\S+) round (\d+): .*\n", said, re.MULTILINE)
    return [(model, strategy, int(number)) for model, strategy, number in found]


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


def python_path() -> str:
    """PYTHONPATH for a process of a test: this one's, before it the repository's."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([own] if own else [])])
