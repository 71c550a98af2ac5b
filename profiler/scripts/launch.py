"""Runs a user's command as it is, with hollow GPUs and the watch in every Python process that it starts."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import msgspec

from profiler.core.case import Choice
from profiler.core.errors import UserError, is_theirs
from profiler.core.gpu_specs import MOST_BYTES
from profiler.core.record import Gradients
from profiler.rehearsal import build, device, loader, smoke
from profiler.rehearsal.smoke import proven_libraries
from profiler.scripts.report import MISSING, Asked, Ended, Row, Variant, read_process

INJECT = Path(__file__).parent / "inject"
GUARD = INJECT / "gcprof_saving.py"
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between TERM and KILL
STACK_SIGNAL, TOLD = signal.SIGRTMIN + 20, "told"  # as in the watch; no launcher's signal and no script's
STACK_SECONDS = 3.0  # a stack is written within milliseconds; a process within C code tells no phase
MOST_LINES = 3  # of the user's, the innermost first
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
OnLine = Callable[[Row], None]
NODES = ("--nnodes", "--num-machines")  # of torchrun and accelerate
QUIET = {  # what would send something away, or ask for a key
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "offline",
}  # fmt: skip


def run(asked: Asked, *, on_line: OnLine = lambda line: None, stdout: int | None = None) -> Ended:
    """Run the command until it ends; call `on_line` with each line of the watch as it is written.

    A `stdout` of subprocess.DEVNULL silences its warnings too.

    Where the system lets nobody guard files, the command is run with what it saves redirected, and that is said. Raises
    UserError where it would wait for other nodes or its Python lacks what a strategy needs, and (exit code 3) where the
    hollow device cannot be had, or where the figures of a step with the command's torch are not as arithmetic has them.
    """
    if asked.gpus:
        _refuse_nodes(asked.words)
    scratch = Path(tempfile.mkdtemp(prefix="gcprof-script-"))
    watched, kills = _Watched(scratch, on_line), _num_host_kills()
    try:
        ended, why = _started(asked, watched, stdout, is_guarded=not asked.allow_writes)
        if why:
            on_line({"kind": "unguarded", "why": why})
            ended, _ = _started(asked, watched, stdout, is_guarded=False)
        for path in scratch.glob("*.gradients*") if asked.kept else ():
            shutil.move(path, asked.kept or "")
        is_host_short = _num_host_kills() > kills
        processes = [
            read_process(
                path.stem, rows, gone=watched.deaths.get(path), is_host_short=is_host_short, refused=_refused(path)
            )
            for path, rows in sorted(watched.rows.items())
        ]
        ended = msgspec.structs.replace(
            ended,
            unguarded=why or None,
            processes=tuple(
                sorted(filter(None, processes), key=lambda one: (one.rank is None, one.rank or 0, one.number))
            ),
            lost=_first_lost(watched),
            lines={path.stem: rows for path, rows in sorted(watched.rows.items())},
            stopped=tuple(_stacks(scratch)) if ended.timed_out else (),
        )
        if _is_notebook_cut(asked, ended):
            ended = msgspec.structs.replace(ended, exit_code=0)
        if needs := next((row["needs"] for row in ended.rows if "needs" in row), None):
            raise UserError(needs, hint="`none` needs nothing there")
        unverified = tuple(_unverified(ended.rows)) if asked.gpus and not ended.is_stopped else ()
        return msgspec.structs.replace(ended, unverified=unverified)
    finally:
        for work in scratch.glob("work*/work"):
            work.chmod(0o700)  # overlays leave it closed to everyone
        shutil.rmtree(scratch, ignore_errors=True)


def _is_notebook_cut(asked: Asked, ended: Ended) -> bool:
    """Whether --steps ended a notebook, of which `jupyter execute` takes the end of its kernel for an error."""
    is_notebook = any(word.endswith(".ipynb") for word in asked.words)
    done = [one.outcome == "ok" and one.num_steps >= (asked.steps or 0) for one in ended.processes]
    return bool(asked.steps and is_notebook and done and all(done))


def unlimited(asked: Asked) -> Asked:
    """Return the same command on GPUs of more memory than there is."""
    assert asked.gpus
    return msgspec.structs.replace(asked, gpus=msgspec.structs.replace(asked.gpus, bytes=MOST_BYTES))


# ---- the command


def _refuse_nodes(words: Sequence[str]) -> None:
    """Raise UserError where the launcher would wait for other nodes: `torchrun --nnodes 2:4 train.py`."""
    own = list(takewhile(lambda word: not word.endswith(".py"), words))
    for word, following in zip(own, (*own[1:], ""), strict=True):
        flag, equals, value = word.partition("=")
        least = (value if equals else following).partition(":")[0]
        if flag.replace("_", "-") in NODES and least.isdecimal() and int(least) > 1:
            hint = "two nodes of 8 are --device h100:16 -- torchrun --nproc-per-node 16, but for shards within a node"
            raise UserError(f"{flag} {least} would wait for nodes that are not here", hint=hint)


def _started(asked: Asked, watched: _Watched, stdout: int | None, *, is_guarded: bool) -> tuple[Ended, str]:
    """Start the command and follow it; return how it ended, and why files cannot be guarded.

    Where they are not to be guarded, what it saves by torch and other libraries is redirected all the same.
    """
    words, environment = [*asked.words], _environment(asked, watched.scratch)
    if not shutil.which(words[0]):  # of gcprof's environment, where that is not active; a system may have python3 alone
        own = sys.executable if words[0] == "python" else words[0]
        words[0] = shutil.which(words[0], path=str(Path(sys.executable).parent)) or own
    with tempfile.TemporaryFile() as refused:
        if is_guarded:
            words = [sys.executable, "-P", str(GUARD), str(watched.scratch), str(refused.fileno()), *words]
        elif not asked.allow_writes:
            environment["GCPROF_SAVING"] = str(watched.scratch / "saved")
        try:
            process = subprocess.Popen(
                words, env=environment, start_new_session=True, stdout=stdout, pass_fds=(refused.fileno(),),
                stderr=subprocess.DEVNULL if stdout == subprocess.DEVNULL else None,
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"{asked.words[0]}: {error.strerror}", hint="after -- is a command") from None
        ended = _follow(process, watched, asked.limit_seconds)
        refused.seek(0)
        return ended, refused.read().decode()


def _environment(asked: Asked, scratch: Path) -> dict[str, str]:
    """Return the command's environment: the caller's, the GPUs, and the folder that reaches its Python processes."""
    hidden = ("CUDA_VISIBLE_DEVICES",) if asked.gpus else ()
    given = {name: value for name, value in os.environ.items() if name not in hidden}
    choice, *levers = Choice(asked.strategy or "").parts
    if "file" in choice.options:  # a script may change its folder before it trains
        choice = Choice.of(choice.name, {**choice.options, "file": os.path.abspath(choice.options["file"])})
    label = asked.strategy and "+".join([choice, *levers])
    limits = {
        "GCPROF_STEPS": asked.steps, "GCPROF_BATCHES": asked.batches, "GCPROF_STRATEGY": label,
        "GCPROF_MODULE": asked.module, "GCPROF_WORK": "1" if asked.gpus and asked.strategy else None,
        "GCPROF_VALUES": asked.values, "GCPROF_CHAIN": asked.chain_step,
    }  # fmt: skip
    hollow: dict[str, str] = {}
    if asked.gpus:  # a folder of the driver's programs, and what opens hollow GPUs
        tool = scratch / "bin" / "nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", loader.__file__])} "$@"\n')
        tool.chmod(0o700)
        hollow = {
            **device.variables(asked.gpus),
            "GCPROF_LIBRARIES": str(proven_libraries()[0]),
            "HOLLOW_MESSAGES": str(scratch),  # all ranks are processes of this command
            "HOLLOW_REFUSED": str(scratch),
            "PATH": os.pathsep.join((str(tool.parent), os.environ.get("PATH", os.defpath))),
        }
    places = [str(INJECT), *given.get("PYTHONPATH", "").split(os.pathsep)]
    packages = dict.fromkeys((str(Path(__file__).parents[2]), str(Path(msgspec.__file__).parents[1])))
    return {
        **{name: value for name, value in QUIET.items() if name not in given},
        "MLFLOW_TRACKING_URI": f"file://{scratch}/mlruns",
        **given,
        **dict.fromkeys(("GCPROF_SEED", "PYTHONHASHSEED"), SEED),
        **hollow,
        **asked.variables,
        **{name: str(value) for name, value in limits.items() if value is not None},
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "GCPROF_WATCH": str(scratch),
        "GCPROF_PACKAGES": os.pathsep.join(packages),
    }


def _follow(process: subprocess.Popen[bytes], watched: _Watched, limit: float | None) -> Ended:
    """Wait for the command's end, or end it and all that it started.

    Signals that ask gcprof to end are handed on to the command, which may heed them; a second one ends it.
    """
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
            watched.look(POLL_SECONDS)
            timed_out = until is not None and time.monotonic() > until
        if timed_out:
            _ask_stacks(watched.scratch)
        watched.look(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(ProcessLookupError):  # what is left of the command's session: TERM, then KILL
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(process.pid, number)
                end = time.monotonic() + GRACE_SECONDS
                while time.monotonic() < end:
                    process.poll()
                    os.killpg(process.pid, 0)
                    time.sleep(POLL_SECONDS)
        watched.close()
    code = process.wait()
    interrupted = heard[0] if heard else None
    return Ended(exit_code=code if code >= 0 else 128 - code, timed_out=timed_out, interrupted=interrupted)


class _Watched:
    """What the processes of a command write, by their files, and when each of them ended, by any death."""

    def __init__(self, scratch: Path, on_line: OnLine) -> None:
        self.scratch = scratch
        self.rows: dict[Path, list[Row]] = {}
        self.deaths: dict[Path, float] = {}  # seconds since the epoch
        self._on_line = on_line
        self._files: dict[Path, IO[bytes]] = {}
        self._alive: dict[int, Path] = {}  # by a descriptor of the process

    def look(self, seconds: float) -> None:
        """Tell what is new, and wait so long, or until a process ends."""
        self._tell()
        for path in self._files.keys() - self.deaths.keys() - set(self._alive.values()):
            try:
                self._alive[os.pidfd_open(int(path.stem.rpartition(".")[2]))] = path
            except OSError:
                self.deaths[path] = time.time()
        for descriptor in select.select([*self._alive], [], [], seconds)[0]:
            self.deaths[self._alive.pop(descriptor)] = time.time()
            os.close(descriptor)

    def close(self) -> None:
        """Tell what was written last, and let go of all."""
        self._tell()
        for descriptor in self._alive:
            os.close(descriptor)
        self._alive.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _tell(self) -> None:
        for path in sorted(self.scratch.glob("*.jsonl")):
            if path not in self._files:
                self._files[path], self.rows[path] = path.open("rb"), []
            file = self._files[path]
            while line := file.readline():
                if not line.endswith(b"\n"):  # torn, where its process was killed
                    file.seek(-len(line), os.SEEK_CUR)
                    break
                self.rows[path].append(json.loads(line))
                self._on_line({**self.rows[path][-1], "process": path.stem})


# ---- how it ended


def _first_lost(watched: _Watched) -> str | None:
    """Return the rank that died first, if that was before it used a GPU, and nothing was raised in any before."""
    dead = [
        path
        for path in watched.deaths
        if not any(row["kind"] == "end" or MISSING in row.get("text", "") for row in watched.rows[path])
    ]
    first = min(dead, key=lambda path: watched.deaths[path], default=None)
    if first is None or any(row["kind"] == "phase" for row in watched.rows[first]):
        return None
    raised = [row for rows in watched.rows.values() for row in rows if row["kind"] == "raised"]
    if any(row["time"] <= watched.deaths[first] and MISSING not in row["text"] for row in raised):
        return None  # its launcher ended it, since another failed
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


def _unverified(rows: list[Row]) -> Iterator[str]:
    """Yield each torch other than gcprof's on which the hollow GPU cannot be tried, with the reason."""
    ours = os.path.realpath(build.installed().folder)
    found = [row for row in rows if row["kind"] == "torch" and os.path.realpath(os.path.dirname(row["file"])) != ours]
    has_phases = any(row["kind"] == "phase" for row in rows)
    for file, row in {row["file"]: row for row in found if has_phases}.items():
        try:
            verdict = smoke.foreign(proven_libraries()[0], row["python"], file)
        except UserError as error:
            yield f"{row['version']}: {error.message}"
            continue
        if verdict.wrong():
            raise UserError(smoke.refusal(verdict), exit_code=3)


# ---- where each process was when the limit ended it: the main thread's stack, as `faulthandler` writes it


def _ask_stacks(scratch: Path) -> None:
    """Have each watched process write its stack and tell its phase, and wait until they have."""
    asked = []
    for path in scratch.glob("*.stack"):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(path.stem.rpartition(".")[2]), STACK_SIGNAL)
            asked.append(path)
    until = time.monotonic() + STACK_SECONDS
    while time.monotonic() < until and not all(path.read_text(errors="replace").endswith(TOLD) for path in asked):
        time.sleep(POLL_SECONDS)


def _stacks(scratch: Path) -> Iterator[str]:
    """Yield for each rank, or where there are none for each process, the lines that it was at.

    A launcher of ranks has no rank, and is not told.
    """
    written = {path.stem: path.read_text(errors="replace") for path in sorted(scratch.glob("*.stack"))}
    ranks = {name: text for name, text in written.items() if text and not name.startswith("-")}
    for name, text in (ranks or written).items():
        rank, _, number = name.partition(".")
        frames = list(FRAME.finditer(text))
        own = [frame for frame in frames if is_theirs(frame["file"])]
        if not frames:
            continue
        who = f"process {number}" if rank == "-" else f"rank {rank}"
        lines = ", called at ".join(f"{os.path.basename(frame['file'])}:{frame['line']}" for frame in own[:MOST_LINES])
        inner = f"{frames[0]['function']} ({os.path.basename(frames[0]['file'])}:{frames[0]['line']})"
        within = f"in {inner}" if not own or own[0] is not frames[0] else ""
        yield " ".join(filter(None, (f"{who} was at" if own else f"{who} was", lines, within)))


# ---- measured on the device that is here: memory and gradients of each strategy once, then rounds of time

SEED = "0"
LOOKED_AT = 3  # steps of a run for gradients alone: both steps of a second optimizer are in them
ROUNDING = 2.0**-12  # relative: as in profiler/measuring/meters/equality.py, whose differences these are
IN_BACKWARD = "in-backward"
FREED = f"{IN_BACKWARD} frees gradients before the step at which they are compared"
Line = dict[str, Any]
Lines = Mapping[str, Sequence[Line]]  # of each process
Place = tuple[int, int, str]  # a step, from 1; an optimizer, in the order of their first steps; a process


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    variants: tuple[Variant, ...]
    last: Ended  # the run that ended all, or the last one
    exit_code: int  # of the command's first run


def measure(
    asked: Asked, strategies: Sequence[str], *, rounds: int, values: Mapping[str, str], say: Callable[[str], None],
    **first: Any,
) -> Session:  # fmt: skip
    """Run the command for each strategy, `none` first; where one run is ended from outside, nothing follows it.

    `none` is run a second time for its gradients alone. `values` are those of -L, `say` takes lines of progress, and
    `first` is for the `run` of the first run alone; others print nothing. Raises UserError as `run` does.
    """
    with tempfile.TemporaryDirectory(prefix="gcprof-gradients-") as name:
        folder, again = Path(name), None
        say("none: memory and gradients")
        plain = last = _run(asked, "memory", "none", kept=folder, **first)
        ends = {"none": plain}
        if not (plain.is_stopped or plain.exit_code):
            say("none: its gradients once more")
            few = msgspec.structs.replace(asked, steps=min(asked.steps or LOOKED_AT, LOOKED_AT))
            again = last = _run(few, "gradients", "none", reference=folder)
        for strategy in strategies[1:]:
            if last.is_stopped or plain.exit_code:
                break
            say(f"{strategy}: memory and gradients")
            ends[strategy] = last = _run(asked, "memory", strategy, reference=folder)
    variants = {}
    for strategy, ended in ends.items():
        here = msgspec.structs.replace(asked, gpus=None, strategy=strategy)
        variants[strategy] = variant = Variant.of(ended, here, values)
        if again is not None and not again.is_stopped and not ended.exit_code:
            is_freed = IN_BACKWARD in (lever.name for lever in Choice(strategy).parts)
            found = compared(plain.lines, again.lines, (again if strategy == "none" else ended).lines)
            equality = Gradients(verdict="unverified", detail=FREED) if is_freed else found
            variants[strategy] = msgspec.structs.replace(variant, equality=equality)
    if not last.is_stopped and not plain.exit_code:
        last = _time(asked, rounds, variants, say) or last
    return Session(variants=tuple(variants.values()), last=last, exit_code=plain.exit_code)


def _time(asked: Asked, rounds: int, variants: dict[str, Variant], say: Callable[[str], None]) -> Ended | None:
    """Add the seconds of each round to the variants that ended well; return the last run."""
    timed = [strategy for strategy, variant in variants.items() if variant.outcome == "ok"]
    ended = None
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: time of {', '.join(timed)}")
        for strategy in timed[::-1] if number % 2 else timed:
            ended = _run(asked, "time", strategy)
            if ended.is_stopped:
                return ended
            found = variants[strategy]
            made = [tuple(row["seconds"] for row in rows if row["kind"] == "seconds") for rows in ended.lines.values()]
            most = max(made, key=len, default=())  # of the process that made most steps
            variants[strategy] = msgspec.structs.replace(found, seconds=(*found.seconds, most))
    return ended


def _run(
    asked: Asked, what: str, strategy: str, *, kept: Path | None = None, reference: Path | None = None, **given: Any
) -> Ended:
    variables = {"GCPROF_MEASURE": what, "KINETO_LOG_LEVEL": "6"}
    variables |= asked.variables | ({"GCPROF_REFERENCE": str(reference)} if reference else {})
    measuring = msgspec.structs.replace(asked, strategy=strategy, variables=variables, kept=kept)
    return run(measuring, **{"stdout": subprocess.DEVNULL, **given})


def compared(plain: Lines, again: Lines, other: Lines) -> Gradients:
    """Compare a run with `plain`, at the steps in which `again`, the same command, has the gradients of `plain`."""
    expected, repeated, found = _gradients(plain), _gradients(again), _gradients(other)
    places: list[Place] = []
    for place in sorted(expected.keys() & repeated.keys()):
        if changed := _changed(expected[place], repeated[place]):
            if places and place[0] > 1:
                break  # what follows cannot be compared; the first step can
            why = f"the script's own two runs differ from parameter {changed[0]} on"
            return Gradients(verdict="not comparable", detail=why, parameter=changed[0], step=place[0])
        places.append(place)
    first = [digest for place in places if place[0] == 1 for digest in expected[place]["digests"].values()]
    num = sum(digest is not None for digest in first)
    if not num:
        return Gradients(verdict="unverified", detail="no optimizer of torch.optim made a step with gradients")
    for place in places:
        if place not in found:
            return Gradients(verdict="differ", detail="a step of an optimizer is missing", step=place[0])
        if changed := _changed(expected[place], found[place]):
            amounts = [found[place]["differences"].get(name) for name in changed]
            largest = None if None in amounts else max(amounts)
            is_rounding = largest is not None and largest <= ROUNDING
            return Gradients(
                verdict="equal within rounding" if is_rounding else "differ",
                detail="later steps, which follow from it, were not compared" if is_rounding else None,
                parameter=changed[0], step=place[0], num_differing=len(changed), num_gradients=num,
                largest_difference=largest,
            )  # fmt: skip
    return Gradients(verdict="equal", num_gradients=num)


def _changed(expected: Line, found: Line) -> list[str]:
    """Return the parameters whose gradients do not have the same bytes, in the order of the first run."""
    digests, others, missing = expected["digests"], found["digests"], object()
    return [name for name in {**digests, **others} if digests.get(name, missing) != others.get(name, missing)]


def _gradients(lines: Lines) -> dict[Place, Line]:
    found: dict[Place, Line] = {}
    for row in (row for rows in lines.values() for row in rows if row["kind"] == "gradients"):
        key, more = row["key"], 1
        while (place := (row["step"], row["optimizer"], key)) in found:  # processes that are called the same
            more += 1
            key = f"{row['key']} {more}"
        found[place] = row
    return found
