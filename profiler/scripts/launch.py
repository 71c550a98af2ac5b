"""Runs a user's command as it is, with hollow GPUs and the watch in every Python process that it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from profiler.core.errors import UserError
from profiler.core.rehearsed_gpu import MOST_BYTES, RehearsedGpu
from profiler.rehearsal import build, device, smoke
from profiler.rehearsal.smoke import proven_libraries
from profiler.scripts import guard
from profiler.scripts.report import Process, read_process

INJECT = Path(__file__).parent / "inject"
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between TERM and KILL
QUIET = {  # what would send something away, or ask for a key
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "offline",
}  # fmt: skip


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is to be run."""

    words: tuple[str, ...]
    gpus: RehearsedGpu
    steps: int | None = None  # optimizer steps, after which each process ends
    batches: int | None = None  # of every DataLoader
    limit_seconds: float | None = None
    allow_writes: bool = False  # what it writes to files stays


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    exit_code: int  # of the command: 128 and the signal's number where one killed it
    timed_out: bool = False
    interrupted: int | None = None  # the signal that ended it from outside
    processes: tuple[Process, ...] = ()  # that used a GPU, by rank
    no_device: tuple[str, ...] = ()  # why a process with torch had no GPU
    unverified: tuple[str, ...] = ()  # a torch other than gcprof's on which the hollow GPU could not be tried, and why


def run(asked: Asked, *, on_line: Callable[[dict[str, Any]], None], stdout: int | None = None) -> Ended:
    """Run the command until it ends; call `on_line` with each line of the watch as it is written.

    Raises UserError (exit code 3) where the hollow device cannot be had, where files cannot be guarded, or where the
    figures of a step with the command's torch are not as arithmetic has them.
    """
    scratch = Path(tempfile.mkdtemp(prefix="gcprof-script-"))
    try:
        with tempfile.TemporaryFile() as refused:
            words = [*asked.words]
            if words[0] == "python" and not shutil.which("python"):
                words[0] = sys.executable
            if not asked.allow_writes:
                words = [sys.executable, "-P", guard.__file__, str(scratch), str(refused.fileno()), *words]
            environment = _environment(asked, scratch)
            try:
                process = subprocess.Popen(
                    words, env=environment, start_new_session=True, stdout=stdout, pass_fds=(refused.fileno(),)
                )
            except OSError as error:
                raise UserError(f"{asked.words[0]}: {error.strerror}", hint="after -- is a command") from None
            code, timed_out, interrupted = _follow(process, scratch, asked.limit_seconds, on_line)
            refused.seek(0)
            if why := refused.read().decode():
                raise UserError(
                    f"this system does not let gcprof keep the command from overwriting files ({why})",
                    hint="--allow-writes runs it all the same: what it saves is then garbage, over what was there",
                    exit_code=3,
                )
        lines = {path: _lines(path) for path in sorted(scratch.glob("*.jsonl"))}
        processes = [made for path, rows in lines.items() if (made := read_process(path.stem, rows))]
        return Ended(
            exit_code=code if code >= 0 else 128 - code,
            timed_out=timed_out,
            interrupted=interrupted,
            processes=tuple(sorted(processes, key=lambda made: (made.rank is None, made.rank or 0, made.number))),
            unverified=() if timed_out or interrupted else tuple(_unverified([*chain.from_iterable(lines.values())])),
            no_device=tuple(row["why"] for rows in lines.values() for row in rows if row["kind"] == "no device"),
        )
    finally:
        for work in scratch.glob("work*/work"):
            work.chmod(0o700)  # overlays leave it closed to everyone
        shutil.rmtree(scratch, ignore_errors=True)


def unlimited(asked: Asked) -> Asked:
    """Return the same command on GPUs of more memory than there is."""
    gpus = msgspec.structs.replace(asked.gpus, bytes=MOST_BYTES)
    return msgspec.structs.replace(asked, gpus=gpus)


def _environment(asked: Asked, scratch: Path) -> dict[str, str]:
    """Return the command's environment: the caller's, the GPUs, and the folder that reaches its Python processes."""
    folder = proven_libraries()[0]
    given = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    places = [str(INJECT), *given.get("PYTHONPATH", "").split(os.pathsep)]
    limits = {"GCPROF_STEPS": asked.steps, "GCPROF_BATCHES": asked.batches}
    return {
        **{name: value for name, value in QUIET.items() if name not in given},
        "MLFLOW_TRACKING_URI": f"file://{scratch}/mlruns",
        **given,
        **device.variables(asked.gpus),
        **{name: str(value) for name, value in limits.items() if value is not None},
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "GCPROF_WATCH": str(scratch),
        "GCPROF_LIBRARIES": _libraries(folder),
    }


def _unverified(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield each torch other than gcprof's on which the hollow GPU cannot be tried, with the reason."""
    ours = os.path.realpath(build.installed().folder)
    found = {row["file"]: row for row in lines if row["kind"] == "torch"}
    for file, row in found.items() if any(row["kind"] == "phase" for row in lines) else ():
        if os.path.realpath(os.path.dirname(file)) == ours:
            continue
        folder = proven_libraries()[0]
        given = {**device.variables(device.parse(smoke.DEVICE)), "GCPROF_LIBRARIES": _libraries(folder)}
        try:
            verdict = smoke.foreign(folder, row["python"], file, inject=INJECT, variables=given)
        except UserError as error:
            yield f"{row['version']}: {error.message}"
            continue
        if verdict.wrong():
            raise UserError(smoke.refusal(verdict), exit_code=3)


def _libraries(folder: Path) -> str:
    """Return the folder with the CUDA version of its libraries: `13=/home/...`."""
    version = next(folder.glob("libcudart.so.*")).name.rpartition(".")[2]
    return f"{version}={folder}"


def _follow(
    process: subprocess.Popen[bytes], scratch: Path, limit: float | None, on_line: Callable[[dict[str, Any]], None]
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
            time.sleep(POLL_SECONDS)
        _tell(scratch, read, on_line)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end(process)
        for file in read.values():
            file.close()
    return process.wait(), timed_out, heard[0] if heard else None


def _tell(scratch: Path, read: dict[Path, IO[bytes]], on_line: Callable[[dict[str, Any]], None]) -> None:
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
