"""Runs a user's command as it is, with hollow GPUs and the watch in every Python process that it starts."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.rehearsed_gpu import MOST_BYTES, RehearsedGpu
from profiler.rehearsal import build, device, smoke
from profiler.rehearsal.smoke import proven_libraries
from profiler.scripts import guard, stacks
from profiler.scripts.report import MISSING, Process, read_process

INJECT = Path(__file__).parent / "inject"
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between TERM and KILL
OnLine = Callable[[dict[str, Any]], None]
QUIET = {  # what would send something away, or ask for a key
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "offline",
}  # fmt: skip


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is to be run."""

    words: tuple[str, ...]
    gpus: RehearsedGpu | None = None  # the devices that are here if None
    steps: int | None = None  # optimizer steps, after which each process ends
    batches: int | None = None  # of every DataLoader
    limit_seconds: float | None = None
    strategy: str | None = None  # applied to the model that it trains
    module: str | None = None  # a pattern of the modules that the strategy is applied to
    chain_step: int | None = None  # of the optimizer, from 0: the stages of its models are costed, and then it ends
    values: str | None = None  # how values that are not known are assumed
    allow_writes: bool = False  # what it writes to files stays
    variables: dict[str, str] = {}  # for what is loaded in its processes
    kept: Path | None = None  # a folder for the gradients that it leaves


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    exit_code: int  # of the command: 128 and the signal's number where one killed it
    timed_out: bool = False
    interrupted: int | None = None  # the signal that ended it from outside
    unguarded: str | None = None  # why files could not be guarded, so that only what it saved was redirected
    processes: tuple[Process, ...] = ()  # that used a GPU, by rank
    no_device: tuple[str, ...] = ()  # why a process with torch had no GPU
    lost: str | None = None  # the rank that was the first to end without a word, before it used a GPU
    lines: dict[str, list[dict[str, Any]]] = {}  # of the watch, by process
    stopped: tuple[str, ...] = ()  # where each rank or process was when the limit ended it
    needs: str | None = None  # what the script's Python lacks for a strategy
    unverified: tuple[str, ...] = ()  # a torch other than gcprof's on which the hollow GPU could not be tried, and why


def run(asked: Asked, *, on_line: OnLine, stdout: int | None = None) -> Ended:
    """Run the command until it ends; call `on_line` with each line of the watch as it is written.

    Where the system lets nobody guard files, the command is run with what it saves redirected, and that is said. Raises
    UserError (exit code 3) where the hollow device cannot be had, or where the figures of a step with the command's
    torch are not as arithmetic has them.
    """
    scratch = Path(tempfile.mkdtemp(prefix="gcprof-script-"))
    deaths, kills = _Deaths(), _num_host_kills()
    try:
        code, timed_out, interrupted, why = _started(asked, scratch, on_line, deaths, stdout)
        if why:
            on_line({"kind": "unguarded", "why": why})
            code, timed_out, interrupted, _ = _started(asked, scratch, on_line, deaths, stdout, is_guarded=False)
        lines = {path: _lines(path) for path in sorted(scratch.glob("*.jsonl"))}
        for path in scratch.glob("*.gradients*") if asked.kept else ():
            shutil.move(path, asked.kept / path.name if asked.kept else path)
        is_host_short = _num_host_kills() > kills
        read = (
            read_process(
                path.stem, rows, gone=deaths.seen.get(path), is_host_short=is_host_short, refused=_refused(path)
            )
            for path, rows in lines.items()
        )
        processes = [process for process in read if process]
        return Ended(
            exit_code=code if code >= 0 else 128 - code,
            timed_out=timed_out,
            interrupted=interrupted,
            unguarded=why or None,
            processes=tuple(sorted(processes, key=lambda made: (made.rank is None, made.rank or 0, made.number))),
            needs=next((row["needs"] for rows in lines.values() for row in rows if "needs" in row), None),
            unverified=tuple(_unverified([*chain.from_iterable(lines.values())]))
            if asked.gpus and not (timed_out or interrupted)
            else (),
            lost=_first_lost(lines, deaths.seen),
            no_device=tuple(row["why"] for rows in lines.values() for row in rows if row["kind"] == "no device"),
            lines={path.stem: rows for path, rows in lines.items()},
            stopped=stacks.read(scratch) if timed_out else (),
        )
    finally:
        for work in scratch.glob("work*/work"):
            work.chmod(0o700)  # overlays leave it closed to everyone
        shutil.rmtree(scratch, ignore_errors=True)


def _first_lost(lines: dict[Path, list[dict[str, Any]]], deaths: dict[Path, float]) -> str | None:
    """Return the rank that died first, if that was before it used a GPU, and nothing was raised in it."""
    dead = [
        path
        for path, rows in lines.items()
        if path in deaths and not any(row["kind"] == "end" or MISSING in row.get("text", "") for row in rows)
    ]
    first = min(dead, key=lambda path: deaths[path], default=None)
    if first is None or any(row["kind"] in ("phase", "raised") for row in lines[first]):
        return None
    return first.stem.partition(".")[0]


def _refused(path: Path) -> tuple[str, ...]:
    """Return the functions that a process called and the hollow libraries do not have, by the file of its lines."""
    with suppress(FileNotFoundError):
        return tuple(path.with_name(f"{path.stem.rpartition('.')[2]}.refused").read_text(encoding="ascii").split())
    return ()


def _num_host_kills() -> int:
    """Return how many processes the system has killed since it started, for lack of its own memory."""
    with suppress(OSError):
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def _started(
    asked: Asked, scratch: Path, on_line: OnLine, deaths: _Deaths, stdout: int | None, *, is_guarded: bool = True
) -> tuple[int, bool, int | None, str]:
    """Start the command and follow it; return its code, why it was ended, and why files cannot be guarded.

    Where they are not to be guarded, what it saves by torch and other libraries is redirected all the same.
    """
    words = [*asked.words]
    if words[0] == "python" and not shutil.which("python"):
        words[0] = sys.executable
    environment = _environment(asked, scratch)
    with tempfile.TemporaryFile() as refused:
        if is_guarded and not asked.allow_writes:
            words = [sys.executable, "-P", guard.__file__, str(scratch), str(refused.fileno()), *words]
        elif not asked.allow_writes:
            environment["GCPROF_SAVING"] = str(scratch / "saved")
        try:
            process = subprocess.Popen(
                words, env=environment, start_new_session=True, stdout=stdout, pass_fds=(refused.fileno(),)
            )
        except OSError as error:
            raise UserError(f"{asked.words[0]}: {error.strerror}", hint="after -- is a command") from None
        code, timed_out, interrupted = _follow(process, scratch, asked.limit_seconds, on_line, deaths)
        refused.seek(0)
        return code, timed_out, interrupted, refused.read().decode()


def unlimited(asked: Asked) -> Asked:
    """Return the same command on GPUs of more memory than there is."""
    assert asked.gpus
    gpus = msgspec.structs.replace(asked.gpus, bytes=MOST_BYTES)
    return msgspec.structs.replace(asked, gpus=gpus)


def _environment(asked: Asked, scratch: Path) -> dict[str, str]:
    """Return the command's environment: the caller's, the GPUs, and the folder that reaches its Python processes."""
    hidden = ("CUDA_VISIBLE_DEVICES",) if asked.gpus else ()
    given = {name: value for name, value in os.environ.items() if name not in hidden}
    places = [str(INJECT), *given.get("PYTHONPATH", "").split(os.pathsep)]
    limits = {
        "GCPROF_STEPS": asked.steps, "GCPROF_BATCHES": asked.batches, "GCPROF_STRATEGY": _in_place(asked.strategy),
        "GCPROF_MODULE": asked.module, "GCPROF_WORK": "1" if asked.gpus and asked.strategy else None,
        "GCPROF_VALUES": asked.values, "GCPROF_CHAIN": asked.chain_step,
    }  # fmt: skip
    packages = dict.fromkeys((str(Path(__file__).parents[2]), str(Path(msgspec.__file__).parents[1])))
    return {
        **{name: value for name, value in QUIET.items() if name not in given},
        "MLFLOW_TRACKING_URI": f"file://{scratch}/mlruns",
        **given,
        **(_hollow(asked.gpus, scratch) if asked.gpus else {}),
        **asked.variables,
        **{name: str(value) for name, value in limits.items() if value is not None},
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "GCPROF_WATCH": str(scratch),
        "GCPROF_PACKAGES": os.pathsep.join(packages),
    }


def _hollow(gpus: RehearsedGpu, scratch: Path) -> dict[str, str]:
    """Return what tells the command's processes to open hollow GPUs."""
    folder = proven_libraries()[0]
    return {
        **device.variables(gpus),
        **_libraries(folder),
        "HOLLOW_MESSAGES": str(scratch),  # all ranks are processes of this command
        "HOLLOW_REFUSED": str(scratch),
        "PATH": os.pathsep.join((_tools(scratch, folder), os.environ.get("PATH", os.defpath))),
    }


def _tools(scratch: Path, libraries: Path) -> str:
    """Make a folder of programs that come with a GPU's driver, and return it."""
    words = [sys.executable, "-I", str(INJECT / "gcprof_smi.py"), str(libraries / "libnvidia-ml.so.1")]
    tool = scratch / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    tool.chmod(0o700)
    return str(tool.parent)


def _in_place(strategy: str | None) -> str | None:
    """Return the strategy with its file's whole path: a script may change its folder before it trains."""
    choice = Choice(strategy or "")
    files = {key: os.path.abspath(value) for key, value in choice.options.items() if key == "file"}
    return str(Choice.of(choice.name, {**choice.options, **files})) if files else strategy


def _unverified(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield each torch other than gcprof's on which the hollow GPU cannot be tried, with the reason."""
    ours = os.path.realpath(build.installed().folder)
    found = {row["file"]: row for row in lines if row["kind"] == "torch"}
    for file, row in found.items() if any(row["kind"] == "phase" for row in lines) else ():
        if os.path.realpath(os.path.dirname(file)) == ours:
            continue
        folder = proven_libraries()[0]
        given = device.variables(device.parse(smoke.DEVICE)) | _libraries(folder)
        try:
            verdict = smoke.foreign(folder, row["python"], file, inject=INJECT, variables=given)
        except UserError as error:
            yield f"{row['version']}: {error.message}"
            continue
        if verdict.wrong():
            raise UserError(smoke.refusal(verdict), exit_code=3)


def _libraries(folder: Path) -> dict[str, str]:
    """Return what tells a process where the hollow libraries are, by their CUDA version, and their order."""
    version = next(folder.glob("libcudart.so.*")).name.rpartition(".")[2]
    return {"GCPROF_LIBRARIES": f"{version}={folder}", "GCPROF_ORDER": ",".join(device.ORDER)}


def _follow(
    process: subprocess.Popen[bytes],
    scratch: Path,
    limit: float | None,
    on_line: OnLine,
    deaths: _Deaths,
) -> tuple[int, bool, int | None]:
    """Wait for the command's end, or end it and all that it started; return its code, and why it was ended.

    Signals that ask gcprof to end are handed on to the command, which may heed them; a second one ends it.
    """
    read: dict[Path, IO[bytes]] = {}
    until = time.monotonic() + limit if limit else None
    heard: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        heard.append(number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number if len(heard) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    timed_out = False
    try:
        while process.poll() is None and not timed_out:
            _tell(scratch, read, on_line)
            timed_out = until is not None and time.monotonic() > until
            deaths.wait(POLL_SECONDS, among=read)
        if timed_out:
            stacks.ask(scratch)
        _tell(scratch, read, on_line)
        deaths.wait(0, among=read)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end(process)
        deaths.close()
        for file in read.values():
            file.close()
    return process.wait(), timed_out, heard[0] if heard else None


class _Deaths:
    """When processes of the command ended, by their files, in seconds since the epoch; from outside, by any death."""

    def __init__(self) -> None:
        self.seen: dict[Path, float] = {}
        self._poll = select.poll()
        self._open: dict[int, Path] = {}  # by the descriptor of the process

    def wait(self, seconds: float, *, among: Iterable[Path]) -> None:
        """Wait so long, or until one of them ends."""
        for path in set(among) - {*self.seen, *self._open.values()}:
            try:
                descriptor = os.pidfd_open(int(path.stem.rpartition(".")[2]))
            except OSError:
                self.seen[path] = time.time()
                continue
            self._open[descriptor] = path
            self._poll.register(descriptor, select.POLLIN)
        for descriptor, _ in self._poll.poll(seconds * 1000):
            self.seen[self._open.pop(descriptor)] = time.time()
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def _tell(scratch: Path, read: dict[Path, IO[bytes]], on_line: OnLine) -> None:
    for path in sorted(scratch.glob("*.jsonl")):
        if path not in read:
            read[path] = path.open("rb")
        file = read[path]
        while line := file.readline():
            if not line.endswith(b"\n"):
                file.seek(-len(line), os.SEEK_CUR)
                break
            on_line({**json.loads(line), "process": path.stem})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command's session: TERM, then KILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(POLL_SECONDS)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file; the last one may be torn, where its process was killed."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
