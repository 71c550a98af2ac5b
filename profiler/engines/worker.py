"""Functions that run in a child and answer on its channel, each message a line of JSON: records, traces, devices.

Rehearsed rows of one baseline share the model: it is made once, and each trial runs in a fork of the child. A hollow
device is memory of its process, so that a fork has it, and the model on it (HOLLOW_FORKS). PyTorch refuses CUDA in a
fork, which real devices do not survive, and is told otherwise here. Nothing before the forks may run a backward, whose
threads a fork does not have.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointError

from profiler.core.case import Case, Trial, decode, encode
from profiler.core.errors import Exited, Invalid, Unsupported, UserError, exited, innermost_line, is_ours, is_theirs
from profiler.core.gpu_specs import parse
from profiler.core.record import IN_BUILD, Environment, Note, Outcome, Record, Shortage
from profiler.core.safe_files import hide
from profiler.core.trace_data import Followed
from profiler.core.units import GIB, KIB, MIB
from profiler.engines import killer
from profiler.engines.forkserver import die_with_parent
from profiler.measuring import devices as measured_devices
from profiler.measuring.devices import available_bytes, environment, open_device, versions
from profiler.measuring.failure_causes import CAUSE, CLOSURE, WHERE, lacks_closure
from profiler.measuring.passes import measure_together
from profiler.measuring.ranks import ALONE, FirstRank, Lost, Ranks, launch
from profiler.measuring.trial import measure
from profiler.predicting import prediction
from profiler.predicting.stages import stages
from profiler.predicting.traced_case import code_way
from profiler.rehearsal import device as hollow_device
from profiler.scripts.inject import gcprof_replaced
from profiler.training import assemble
from profiler.training.known_values import ZEROS
from profiler.training.own_checkpoints import HAS_OWN

OF_DEVICE = (  # besides torch.OutOfMemoryError
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
NOT_HOLLOW = {  # prefix of PyTorch's message -> what the hollow device lacks; users' mistakes fail earlier
    "cuDNN error: ": "no recurrent networks and no CTC loss of cuDNN",
    "cusolver error: ": "no linear algebra of cuSOLVER",
}
TWICE = (
    "DDP with a reentrant checkpoint around parameters that are used twice: each backward marks them ready; with "
    "use_reentrant=False in the model's checkpoints they are marked once"
)
WRITTEN = "modified by an inplace operation"  # torch/csrc/autograd/saved_variable.cpp
WRITTEN_INPUT = (
    "a checkpoint keeps its inputs to recompute from, and one was modified in place since: x += y and "
    "F.relu(x, inplace=True) do that, x = x + y does not"
)
CAUSES = {  # phrase of PyTorch's message -> likely cause
    "Tensor cached during selective activation checkpoint has been mutated": (  # torch/utils/checkpoint.py
        "the blocks modify a kept result in place, as nn.ReLU(inplace=True) does that of a convolution; "
        "inplace=False does not"
    ),
    "mark a variable ready only once": TWICE,  # torch/csrc/distributed/c10d/reducer.cpp
    "marked as ready twice": TWICE,
}
MACHINERY = re.compile(r"/torch/(_|utils/(flop_counter|_))")  # its dispatch, below an operator that the user calls
UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
LONGEST_DETAIL = 1000  # characters of a rank's last message


def run_trials(request: str, channel: int) -> None:
    """Measure, rehearse or predict the trials in `request`, each when it is asked for."""
    run_each(request, channel, by=_run)


def _run(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    case = trial.case
    if case.is_predicted:
        return prediction.predict(trial, on_pass=on_pass)
    run = rehearse if case.is_rehearsed else measure_ranks if case.ranks else measure
    return run(trial, on_pass=on_pass)


def run_each(request: str, channel: int, *, by: Callable[..., Record]) -> None:
    """Run the trials in `request` one after another, each when it is asked for."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    for trial in trials:
        if (since := asked(channel)) is None:
            return
        _run_one(trial, channel, since, by)


def _run_one(trial: Trial, channel: int, since: float, by: Callable[..., Record]) -> None:
    """Run a trial that was asked for at `since`, by the monotonic clock; send every stage, then the record."""
    start_seconds = time.monotonic() - since
    send(channel, attempt(trial, on_pass=lambda stage: tell(channel, {"stage": stage}), by=by), start_seconds)


def asked(channel: int) -> float | None:
    """Wait until a result is asked for; return when that was, by the monotonic clock, or None if nobody asks."""
    word = os.read(channel, 64)
    return float(word) if word else None


def attempt(trial: Trial, *, on_pass: Callable[[str], None], by: Callable[..., Record]) -> Record:
    """Return the trial's record; an error that the model raises becomes the outcome of this trial."""
    try:
        return by(trial, on_pass=on_pass)
    except SystemExit as error:
        return error_record(trial, exited(error))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        return error_record(trial, error)


def send(channel: int, record: Record, start_seconds: float) -> None:
    """Send a record as the line that is stored, after flushing all that its trial printed.

    `start_seconds` are those from the request to the beginning of the trial.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    tell(channel, msgspec.structs.replace(record, stage_seconds={"start": start_seconds, **record.stage_seconds}))


def tell(channel: int, message: object) -> None:
    """Write one whole line of JSON to the channel."""
    rest = memoryview(encode(message) + b"\n")
    while rest:
        rest = rest[os.write(channel, rest) :]


def answer(channel: int, work: Callable[[], object]) -> None:
    """Send the result of `work`, or why it was refused or failed."""
    try:
        tell(channel, {"answer": work()})
    except (Invalid, Unsupported, UserError) as error:
        tell(channel, {"refused": hide(str(error))})
    except SystemExit as error:
        tell(channel, {"failed": error_detail(exited(error))})
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        if absent := absent_library(error):
            tell(channel, {"refused": absent})
            return
        print(user_traceback(error), file=sys.stderr, end="")
        tell(channel, {"failed": error_detail(error)})


def run_together(request: str, channel: int) -> None:
    """Time several trials on one model, and send their records, each when it is asked for."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    start_seconds = time.monotonic() - (asked(channel) or 0.0)
    try:
        records = measure_together(trials, on_pass=lambda stage: tell(channel, {"stage": stage}))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        records = [error_record(trial, error) for trial in trials]
    send(channel, records[0], start_seconds)
    for record in records[1:]:
        if asked(channel) is None:
            return
        send(channel, record, 0.0)


def measure_ranks(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    """Run the trial in one process for each rank; the first that fails decides its outcome."""

    def work(group: Ranks) -> bytes:
        record = measure(trial, on_pass=on_pass if group.rank == 0 else lambda stage: None, group=group)
        return encode(record) if group.rank == 0 else b""

    def failed(error: Exception, rank: int) -> bytes:
        record = error_record(trial, error)
        named = record.detail if record.outcome == "skipped" else f"rank {rank}: {record.detail}"
        return encode(msgspec.structs.replace(record, detail=str(named)[:LONGEST_DETAIL]))

    try:
        text = launch(trial.case.num_ranks, trial.case.device, work, failed=failed)
    except Lost as lost:  # a rank was killed, or ended without a result
        if lost.status < 0:
            return without_readings(trial, "crashed", f"rank {lost.rank} was killed by {killer(lost.status)}")
        if not lost.word:
            detail = f"rank {lost.rank} ended without a result (exit code {lost.status})"
            return without_readings(trial, "failed", detail)
        text = lost.word
    record: Record = decode(text, Record)
    return record


def rehearse(trial: Trial, *, on_pass: Callable[[str], None], told: list[str] | None = None) -> Record:
    """Measure the trial on the hollow device of the GPU that it names; of several ranks, only the first.

    `told` is what `_open_hollow` returned, where it has been called.
    """
    if told is None:
        told = _open_hollow(trial.case)
    group = FirstRank(trial.case.num_ranks) if trial.case.ranks else ALONE
    record = measure(trial, on_pass=on_pass, group=group)
    if told:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP018", text="; ".join(told))))
    said = hollow_device.convolutions()
    notes = (
        msgspec.structs.replace(note, text=f"{note.text}; {said}") if said and note.code == "GCP039" else note
        for note in record.notes
    )
    return msgspec.structs.replace(record, notes=tuple(notes))


def run_rows(request: str, channel: int) -> None:
    """Rehearse trials of one baseline in forks of this process; pass on their records, each when it is asked for.

    As many forks run at once as there are processors. Ends where one ends without a result.
    """
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    since = asked(channel)
    by = partial(rehearse, told=_open_hollow(trials[0].case))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has no pool of threads
    os.environ["HOLLOW_FORKS"] = "1"
    torch.cuda._is_in_bad_fork = lambda: False
    with suppress(Exception):  # each fork fails in the same way, and says so
        assemble.prepare(trials[0])
    gc.freeze()  # so that collections in the forks need not scan it
    rows: list[tuple[int, int, IO[bytes]]] = []  # of each fork its pid, what it sends and what it prints
    for place in range(len(trials)):
        since = asked(channel) if place else since
        if since is None:
            return
        for trial in trials[len(rows) : place + (os.cpu_count() or 1)]:
            rows.append(_begin(trial, since, num_threads, by))
        pid, sent, printed = rows[place]
        while data := os.read(sent, 1 << 16):
            while data:
                data = data[os.write(channel, data) :]
        _, status = os.waitpid(pid, 0)
        printed.seek(0)
        sys.stdout.buffer.write(printed.read())
        sys.stdout.flush()
        if status:
            return


def _begin(trial: Trial, since: float, num_threads: int, by: Callable[..., Record]) -> tuple[int, int, IO[bytes]]:
    ours, theirs = os.pipe()
    printed, parent = tempfile.TemporaryFile(), os.getpid()  # noqa: SIM115  read when the fork has ended
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours, printed
    status = 1
    try:
        die_with_parent(parent)
        for standard in (1, 2):
            os.dup2(printed.fileno(), standard)
        torch.set_num_threads(num_threads)
        _run_one(trial, theirs, since, by)
        status = 0
    except BaseException:  # noqa: BLE001  a fork must never return into the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(kind: type[Any], work: Callable[[Any], object], request: str, channel: int) -> None:
    given = decode(request, kind)

    def worked() -> object:
        told = _open_hollow(given.case if isinstance(given, Trial) else given)
        result = work(given)
        if isinstance(result, Followed):
            return msgspec.structs.replace(result, remarks=(*result.remarks, *told))
        return result

    answer(channel, worked)


outline = partial(_answer, Case, assemble.summary)  # the model and its blocks
way = partial(_answer, Case, code_way)  # what code is written for
follow = partial(_answer, Trial, prediction.follow_case)  # the step, traced or recorded by a hollow GPU's allocator
follow_with_choices = partial(_answer, Trial, partial(prediction.follow_case, with_choices=True))  # and other blocks


def stage(request: str, channel: int) -> None:
    """Send each step that is timed, with a limit of its own, then the trial's chain of stages, or why there is none."""

    def on_step(step: str) -> None:
        tell(channel, {"stage": f"timing {step.partition(',')[0]}", "step": step})

    _answer(Trial, partial(stages, on_step=on_step), request, channel)


def _open_hollow(case: Case) -> list[str]:
    """Make this process see the GPU of a rehearsed case; return what is told as the step runs, each once."""
    told: list[str] = []
    if case.is_rehearsed:
        hollow_device.choose(case.device)
        gcprof_replaced.begin(lambda text: None if text in told else told.append(text))
    return told


def survey(request: str, channel: int) -> None:
    """Send the devices that torch can use here, the CPU first, and the free bytes of each."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices: dict[str, Environment] = {}
    free: dict[str, int | None] = {}
    for name in ("cpu", *(f"cuda:{index}" for index in range(count))):
        try:
            device = open_device(name)
            devices[name], free[name] = environment(device), device.free_bytes()
        except RuntimeError as error:  # a device that is broken or taken cannot be measured
            print(f"{name}: {error}", file=sys.stderr)
    tell(channel, {"devices": devices, "free": free})


def free_bytes(request: str, channel: int) -> None:
    """Send the free bytes of the device that `request` names."""
    tell(channel, {"free": open_device(request).free_bytes()})


def compute(request: str, channel: int) -> None:
    """Send what the device that `request` names computes wrongly; None if its arithmetic is right."""
    open_device(request)
    tell(channel, {"wrong": measured_devices.wrong_arithmetic(parse(request).torch_device)})


# what becomes of a trial that raised


def error_record(trial: Trial, error: Exception) -> Record:
    """Return the record of a trial that raised: skipped, invalid, out_of_memory or failed; without secrets.

    The traceback, from the user's own code on, is printed to stderr, which is the trial's log.
    """
    if isinstance(error, (Invalid, Unsupported, UserError)):
        return without_readings(trial, "invalid" if isinstance(error, Invalid) else "skipped", hide(str(error)))
    if absent := absent_library(error):
        return without_readings(trial, "skipped", absent)
    print(user_traceback(error), file=sys.stderr, end="")
    missing = shortage(error)
    code, prefix = ("GCP047", HAS_OWN) if missing else ("GCP041", ZEROS)
    notes = tuple(Note(code=code, text=hide(text)) for text in _added(error) if text.startswith(prefix))
    if missing is None:
        return msgspec.structs.replace(without_readings(trial, "failed", error_detail(error)), notes=notes)
    detail = _first_line(error).partition(" Including non-PyTorch")[0]  # what comes then fills half a screen
    where = f"{IN_BUILD}: " if IN_BUILD in _added(error) else ""
    record = without_readings(trial, "out_of_memory", where + detail)
    described = _with_device(trial, record.environment)
    return msgspec.structs.replace(record, shortage=missing, environment=described, notes=notes)


def without_readings(trial: Trial, outcome: Outcome, detail: str) -> Record:
    """Return a record of the trial with an outcome and no readings."""
    software = versions()  # a hollow device's name says that nothing was measured
    described = _with_device(trial, software) if hollow_device.is_open() else software
    return Record(case=trial.case, round=trial.round, outcome=outcome, detail=detail, environment=described)


def _with_device(trial: Trial, software: Environment | None) -> Environment | None:
    """Return the environment with the trial's device, if the device still answers."""
    try:
        return software if trial.case.is_predicted else environment(open_device(trial.case.device))
    except RuntimeError:
        return software


def _added(error: BaseException) -> tuple[str, ...]:
    return tuple(text for text in getattr(error, "__notes__", ()) if isinstance(text, str))


def absent_library(error: Exception) -> str | None:
    """Return which CUDA library the hollow device lacks, and the line that used it; None for any other error."""
    lacking = next((name for begin, name in NOT_HOLLOW.items() if str(error).startswith(begin)), None)
    if lacking is None or not hollow_device.is_open():
        return None
    place = raised_at(error)
    return f"a rehearsal has {lacking}" + (f" ({place})" if place else "") + "; --device fake:h100 estimates it"


def error_detail(error: Exception) -> str:
    """Return what was raised and where, and the cause if it is known."""
    place, cause = raised_at(error), _cause(error)
    if isinstance(error, CheckpointError):
        return f"checkpoint mismatch: the recompute gives different tensors: {cause or _first_line(error)}"
    words = _first_line(error).partition(". ")[0] if cause else _first_line(error)
    kind = "" if isinstance(error, Exited) else f"{type(error).__name__}: "
    text = f"{kind}{words}" + (f" ({place})" if place else "")
    text = ", ".join([text, *(hide(note) for note in _added(error) if note.startswith(WHERE))])
    return f"{text}; {CAUSE}{cause}" if cause else text


def _cause(error: Exception) -> str | None:
    """Return the likely cause of an error, in words; None if unknown."""
    notes = [note for note in _added(error) if note.startswith(CAUSE)]
    if notes:
        return hide(notes[0].removeprefix(CAUSE))
    if lacks_closure(error):
        return CLOSURE
    frames = traceback.extract_tb(error.__traceback__)
    is_in_checkpoint = bool(frames) and frames[-1].filename == torch.utils.checkpoint.__file__
    causes = {**CAUSES, WRITTEN: WRITTEN_INPUT} if is_in_checkpoint else CAUSES
    return next((cause for phrase, cause in causes.items() if phrase in str(error)), None)


def _first_line(error: BaseException) -> str:
    return (hide(str(error)).strip().splitlines() or ["no message"])[0]  # after hiding, as a secret may have many lines


def shortage(error: BaseException) -> Shortage | None:
    """Return whose memory was too small, what was requested and what was free; None for any other error."""
    words = str(error)

    def says(phrases: tuple[str, ...]) -> bool:
        return isinstance(error, RuntimeError) and any(phrase in words for phrase in phrases)

    def size(pattern: str) -> int | None:
        match = re.search(pattern, words)
        return round(float(match[1]) * UNITS[match[2]]) if match else None

    if isinstance(error, torch.OutOfMemoryError) or says(OF_DEVICE):
        asked_bytes, free_bytes = size(f"[Tt]ried to allocate {SIZE}"), size(f"of which {SIZE} is free")
        return Shortage(of="device", asked_bytes=asked_bytes, free_bytes=free_bytes)
    if isinstance(error, MemoryError) or says(("can't allocate memory",)):  # c10/core/impl/alloc_cpu.cpp
        return Shortage(of="host", asked_bytes=size(f"tried to allocate {SIZE}"), free_bytes=available_bytes())
    return None


def user_traceback(error: BaseException) -> str:
    """Return the traceback without the profiler's frames, and of libraries only those below the user's last frame.

    PyTorch's own frames that dispatch operators are left out there too, unless there is no frame of the user's.
    """
    whole = traceback.TracebackException.from_exception(error)
    _trim(whole)
    return "".join(whole.format())


def raised_at(error: BaseException) -> str | None:
    """Return the innermost line (`file.py:12`) of the user's, else of a library; None if the profiler raised it."""
    if theirs := innermost_line(error):
        return theirs
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return None if is_ours(frame.filename) else f"{Path(frame.filename).name}:{frame.lineno}"


def _trim(error: traceback.TracebackException) -> None:
    """Trim the traceback of an error and of those that caused it."""
    frames = list(error.stack)
    last = max((index for index, frame in enumerate(frames) if is_theirs(frame.filename)), default=-1)
    below = (
        index > last and not is_ours(frame.filename) and not (last >= 0 and MACHINERY.search(frame.filename))
        for index, frame in enumerate(frames)
    )
    kept = [frame for frame, is_below in zip(frames, below, strict=True) if is_theirs(frame.filename) or is_below]
    error.stack = traceback.StackSummary.from_list(kept)
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            _trim(cause)
