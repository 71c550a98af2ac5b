"""The real program in processes of its own: knows nothing of what it should do."""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
TAG = "GCPROF_KILL_TAG"  # in the environment of a run, and so of every process that it starts
AFTERWARDS_SECONDS = 2.0  # in which processes end, on a machine with a core for every one that works
PATIENCE_SECONDS = 600.0  # for what surely comes; nothing waits so long unless it is broken

Done = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    """This process's own, without what would change the program's words."""
    kept = {key: value for key, value in os.environ.items() if key != "GCPROF_TRACEBACK"}
    return {**kept, "PYTHONPATH": python_path(), **more}


WITHOUT_GCPROF = """
import sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "profiler":
            raise ImportError("there is no gcprof here")

sys.meta_path.insert(0, Absent)
"""  # the first lines of a process that must not have it
SIGN_OF_LIFE = re.compile(r"^.*: \d+ s so far\n", re.MULTILINE)  # how many there are is the machine's to say


def gcprof(*words: str, cwd: Path, **more: str) -> Done:
    """The program from its first word to its end, without its signs of life."""
    command = [sys.executable, "-m", "profiler", *words]
    env = environment(**more)
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    done.stderr = SIGN_OF_LIFE.sub("", done.stderr)
    return done


def modules_after(*lines: str) -> set[str]:
    """The names of all modules in a fresh process that ran these command lines."""
    code = (
        "import sys\nfrom profiler.cli import answer\nassert not any([answer(line.split()) for line in sys.argv[1:]])\n"
    )
    command = [sys.executable, "-c", f"{code}print('\\nMODULES', *sys.modules)", *lines]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def next_words(stderr: str) -> list[str]:
    """The command that the program proposes in its last line, without its own name."""
    told, _, command = stderr.splitlines()[-1].partition(": ")
    name, *words = shlex.split(command)
    assert (told, name) == ("next", "gcprof")
    return words


def row_names(stdout: str) -> list[str]:
    """The first column of the table that the program prints; which notes stand below it depends on the machine."""
    lines = iter(stdout.splitlines())
    assert any(line.startswith("----") for line in lines), stdout
    return [line.split()[0] for line in takewhile(bool, lines)]


class Started:
    """The program at work, its stderr read as it comes; the tag finds all of its processes."""

    def __init__(self, *words: str, cwd: Path, tag: str) -> None:
        self.stderr = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "profiler", *words], cwd=cwd, env=environment(**{TAG: tag}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.send = self._process.send_signal

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for(self, text: str) -> None:
        """Read stderr until it says this."""
        assert self._process.stderr
        until = time.monotonic() + PATIENCE_SECONDS
        while text not in self.stderr:
            ready, _, _ = select.select([self._process.stderr], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._process.stderr.fileno(), 1 << 16) if ready else b""
            if not data:
                pytest.fail(f"it never said {text!r}, but: {self.stderr}")
            self.stderr += data.decode()

    def end(self) -> Done:
        """Wait for its end."""
        out, err = self._process.communicate(timeout=PATIENCE_SECONDS)
        self.stderr += err.decode()
        code = self._process.returncode
        said = SIGN_OF_LIFE.sub("", self.stderr)
        return subprocess.CompletedProcess(self._process.args, code, (out or b"").decode(), said)


# a run that something ends: what it printed, and what of it lives on

Key = tuple[str, str, int]  # model, strategy, round


def printed(said: str) -> list[Key]:
    """The trials that a run told as done, line by line; a torn last line was not told."""
    found = re.findall(r"^\[ *\d+/\d+\] (\S+) (\S+) round (\d+): .*\n", said, re.MULTILINE)
    return [(model, strategy, int(number)) for model, strategy, number in found]


def survivors(tag: str, *, patience: float = AFTERWARDS_SECONDS) -> list[psutil.Process]:
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
