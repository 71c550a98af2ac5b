"""A hostile folder against the real program, watched by Python's audit hook and by the kernel (strace)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from profiler.core.case import Trial
from tests import examples, make
from tests.attack import hostile
from tests.attack.commands import READING, RUNNING
from tests.attack.watch import PROCESSES, SOCKETS
from tests.program import PATIENCE_SECONDS, ROOT, environment

STRACE = shutil.which("strace")
CALLS = "open,openat,openat2,execve,execveat,connect,bind,sendto,socket"
OPENED = re.compile(r'open(?:at2?)?\((?:AT_FDCWD|\d+)?,? ?"(?P<path>[^"]*)".*\)\s+= (?P<result>-?\d+)')
STARTED = re.compile(r'execve(?:at)?\(.*?"(?P<path>[^"]*)", \[(?P<words>.*)\], .*\)\s+= 0')
NETWORK = re.compile(r"(?:connect|bind|sendto|socket)\(.*AF_(?!UNIX)\w+")
SYSTEM = (  # of the machine: what libc, the interpreter and PyTorch look up, and nobody's data
    "/proc/", "/sys/", "/dev/null", "/dev/urandom", "/dev/shm/", "/dev/tty", "/usr/lib", "/usr/local/lib", "/lib",
    "/usr/share/zoneinfo", "/usr/share/locale", "/usr/share/terminfo", "/etc/localtime", "/etc/ld.so", "/etc/terminfo",
    "/etc/nsswitch.conf", "/etc/passwd", "/usr/bin/", "/bin/", "/etc/os-release", "/etc/mime.types", "/etc/lsb-release",
    "/usr/share/",
)  # fmt: skip


class Seen(NamedTuple):
    """What a command did, whether it was let or not."""

    code: int
    told: str
    opened: list[str]
    started: list[str]  # a program and its words, as the kernel was given them
    connected: list[str]


@pytest.fixture
def theirs(here: Path) -> Path:
    """Two folders of which every word and every file leads somewhere."""
    hostile.plant(here)
    words = {
        "model": "evilpkg.sub:make", "strategy": "plan:file={here}/outside/secret.json", "blocks": "/etc/passwd",
        "optimizer": "torch:SGD:lr=evilpkg.sub:make", "parallel": "evilpkg:make", "data": "{here}/outside",
    }  # fmt: skip
    for name in ("base", "base2"):
        folder = hostile.folder(here / name, **{field: word.format(here=here) for field, word in words.items()})
        hostile.forge(folder, sources={str(here / "outside" / "secret.json"): "0" * 16}, command="evilpkg.sub:make")
        (folder / "logs" / "one.log").symlink_to(here / "outside" / "secret.json")
        (folder / "plans").symlink_to(here / "outside")
    (here / "home").mkdir()
    return here


def audited(words: tuple[str, ...], here: Path) -> Seen:
    events = here / "events"
    done = _run(["-m", "tests.attack.audited", str(events), *words], here)
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    events.unlink()
    opened = [name for event, name in seen if event == "open"]
    imported = [f"import of {name}" for event, name in seen if event == "import" and name.startswith("evil")]
    return Seen(
        done.returncode, done.stdout + done.stderr, opened + imported,
        [name for event, name in seen if event in PROCESSES], [name for event, name in seen if event in SOCKETS],
    )  # fmt: skip


def traced(words: tuple[str, ...], here: Path) -> Seen:
    """The same by the kernel, of the program and of all processes that it starts."""
    return _traced(["-P", "-m", "profiler", *words], here)


def _traced(words: list[str], here: Path) -> Seen:
    assert STRACE
    calls = here / "calls"
    how = [STRACE, "-f", "-qq", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(calls)]
    done = _run(words, here, before=how)
    lines = calls.read_text(errors="replace").splitlines()
    calls.unlink()
    opened = [match for line in lines if (match := OPENED.search(line))]
    return Seen(
        done.returncode, done.stdout + done.stderr,
        [os.path.join(here, one["path"]) for one in opened if int(one["result"]) >= 0],
        [f"{match['path']} {match['words']}" for line in lines if (match := STARTED.search(line))],
        [line for line in lines if NETWORK.search(line)],
    )  # fmt: skip


def _run(words: list[str], here: Path, *, before: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    homes = {name: str(here / "home") for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    return subprocess.run(
        [*(before or []), sys.executable, *words], cwd=here, env=environment(**homes), capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def elsewhere(paths: list[str], here: Path) -> list[str]:
    """Which of them are not of the folders, what the command writes, the package, Python or the system."""
    made = ("base", "base2", "report.html", "merged", "home", "results", ".report.html.", ".merged.", "events", "calls")
    roots = [str(ROOT), sys.prefix, sys.base_prefix, *(str(here / name) for name in made), *SYSTEM]
    links = [os.path.realpath(root) for root in roots]
    own = (str(here), f"{here}/", f"{here}/.", str(here.parent), "/", *sys.path)  # folders that are looked through
    return [path for path in paths if path not in own and not os.path.normpath(path).startswith((*roots, *links))]


def others(started: list[str], *, allowed: Sequence[str] = ()) -> list[str]:
    """Which of them are neither Python nor allowed."""
    return [
        program
        for program in started
        if program not in allowed and not os.path.samefile(program.partition(" ")[0], sys.executable)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", [*READING, *RUNNING])
def test_a_hostile_folder_opens_starts_and_connects_nothing(command: str, theirs: Path):
    seen = audited({**READING, **RUNNING}[command], theirs)

    assert elsewhere(seen.opened, theirs) == []
    assert (seen.started, seen.connected) == ([], [])
    assert seen.code in ((2,) if command in RUNNING else (0, 4)), seen.told
    assert hostile.SECRET not in seen.told
    assert not (theirs / "sprung").exists()


@pytest.mark.parametrize("command", RUNNING)
@pytest.mark.parametrize("field", ["strategy", "optimizer", "parallel"])
def test_a_package_that_one_word_of_a_folder_names_is_not_imported(field: str, command: str, here: Path):
    """The model is one of gcprof's own, so that nothing else of the folder is a reason to refuse it."""
    hostile.plant(here)
    (here / "home").mkdir()
    hostile.folder(here / "base", **{field: hostile.word("inner module", here)})

    seen = audited(RUNNING[command], here)

    assert elsewhere(seen.opened, here) == []
    assert (seen.started, seen.connected) == ([], [])
    assert seen.code == 2, seen.told
    assert not (here / "sprung").exists()


@pytest.mark.nightly
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize("command", [*READING, *RUNNING])
def test_nor_does_the_kernel_see_more(command: str, theirs: Path):
    seen = traced({**READING, **RUNNING}[command], theirs)

    assert elsewhere(seen.opened, theirs) == []
    assert others(seen.started) == []
    assert len(seen.started) == 1
    assert seen.connected == []


@pytest.mark.nightly
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize("words", [RUNNING["resume"], RUNNING["explain"]], ids=" ".join)
def test_what_is_run_after_all_starts_python_alone_and_connects_nowhere(words: tuple[str, ...], here: Path):
    """A folder of plain words whose files lead elsewhere: its trial runs, in processes of gcprof's own.

    Besides, PyTorch may start what it always does: NVIDIA's finder of libraries asks `ldconfig -p` where they are.
    """
    hostile.plant(here)
    (here / "home").mkdir()
    none, owed = (make.case(name, model="mlp", batch_size=8, warmup=0, samples=1) for name in ("none", "all"))
    folder = examples.run(here / "base", [make.record(case=none)], more=(Trial(case=owed),)).folder
    hostile.forge(folder, sources={str(here / "outside" / "secret.json"): "0" * 16})
    (folder / "plans").symlink_to(here / "outside")
    (folder / "logs" / f"{owed.id}-1.log").symlink_to(here / "outside" / "secret.json")

    seen = traced(words, here)

    assert elsewhere(seen.opened, here) == []
    assert others(seen.started, allowed=_traced(["-P", "-c", "import torch"], here).started) == []
    assert seen.connected == []
    assert hostile.SECRET not in seen.told
    assert (here / "outside" / "secret.json").read_text() == hostile.SECRET


def test_twin_what_the_hook_sees_would_be_told(here: Path):
    hostile.plant(here)
    events = here / "events"
    code = "import subprocess, socket, evilpkg; open('outside/secret.json'); subprocess.run(['true'])"
    hook = f"from tests.attack.audited import audit; from pathlib import Path; audit(Path({str(events)!r})); {code}"

    _run(["-c", hook], here)

    seen = [tuple(json.loads(line)) for line in events.read_text().splitlines()]
    assert ("open", str(here / "outside" / "secret.json")) in seen
    assert ("import", "evilpkg") in seen
    assert [name for event, name in seen if event in PROCESSES] != []
    assert elsewhere([str(here / "outside" / "secret.json")], here) != []
    assert elsewhere([str(here / "base" / "manifest.json")], here) == []


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_twin_what_the_kernel_sees_would_be_told():
    line = '12 openat(AT_FDCWD, "/etc/shadow", O_RDONLY|O_CLOEXEC) = 3'
    lines = (
        '12 execve("/bin/sh", ["sh", "-c"], 0x7ffe /* 3 vars */) = 0',
        "12 connect(3, {sa_family=AF_INET, sin_port=80}, 16) = 0",
    )

    assert OPENED.search(line)["path"] == "/etc/shadow"
    assert STARTED.search(lines[0]).group("path", "words") == ("/bin/sh", '"sh", "-c"')
    assert others(['/bin/sh "sh", "-c"'], allowed=['/bin/sh "sh"']) == ['/bin/sh "sh", "-c"']
    assert NETWORK.search(lines[1])
