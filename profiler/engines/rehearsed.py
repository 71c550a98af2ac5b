"""What runs in a child on a hollow GPU: trials, alone or as rows of one baseline, followed steps, stages, blocks.

Rows of one baseline share the model: it is made once, and each trial runs in a fork of the child. A hollow device is
memory of its process, so that a fork has it, and the model on it (HOLLOW_FORKS). PyTorch refuses CUDA in a fork, which
real devices do not survive, and is told otherwise here. Nothing before the forks may run a backward, whose threads a
fork does not have.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, NamedTuple

import msgspec
import torch

from profiler.core.case import Case, Trial, decode
from profiler.core.record import Note, Record
from profiler.core.trace_data import Followed
from profiler.engines.forkserver import die_with_parent
from profiler.engines.measured import stage as stage_here
from profiler.engines.worker import answer, asked, attempt, send, tell
from profiler.measuring.ranks import ALONE, FirstRank
from profiler.measuring.trial import measure
from profiler.predicting import device_trace
from profiler.rehearsal import device as rehearsed_device
from profiler.scripts.inject import gcprof_replaced
from profiler.training import assemble


def follow(request: str, channel: int, *, with_choices: bool = False) -> None:
    """Send a rehearsed step of the trial in `request`, as its GPU's allocator recorded it, or why there is none."""
    trial: Trial = decode(request, Trial)

    def followed() -> Followed:
        told = _open(trial.case.device)
        step = device_trace.follow_case(trial, with_choices=with_choices)
        return msgspec.structs.replace(step, remarks=(*step.remarks, *told))

    answer(channel, "followed", followed)


def follow_with_choices(request: str, channel: int) -> None:
    """Do as `follow`, with the bytes that checkpointing other blocks of the model would take."""
    follow(request, channel, with_choices=True)


def stage(request: str, channel: int) -> None:
    """Send the chain of stages of the trial in `request`, with estimated seconds."""
    _open(decode(request, Trial).case.device)
    stage_here(request, channel)


def choices(request: str, channel: int) -> None:
    """Send the bytes with the blocks of the case in `request`, and with other blocks."""
    case: Case = decode(request, Case)
    _open(case.device)
    answer(channel, "choices", lambda: device_trace.choices(case))


def _open(device: str) -> list[str]:
    """Make this process see the hollow GPU; return what is told as the step runs, each once."""
    rehearsed_device.choose(device)
    told: list[str] = []
    gcprof_replaced.begin(lambda text: None if text in told else told.append(text))
    return told


def rehearse(trial: Trial, *, on_pass: Callable[[str], None], told: list[str] | None = None) -> Record:
    """Measure the trial on the hollow device of the GPU that it names; of several ranks, only the first.

    `told` is what `_open` returned, where it has been called.
    """
    if told is None:
        told = _open(trial.case.device)
    group = FirstRank(trial.case.num_ranks) if trial.case.ranks else ALONE
    record = measure(trial, on_pass=on_pass, group=group)
    if told:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP018", text="; ".join(told))))
    said = rehearsed_device.convolutions()
    if not said:
        return record
    notes = (
        msgspec.structs.replace(note, text=f"{note.text}; {said}") if note.code == "GCP039" else note
        for note in record.notes
    )
    return msgspec.structs.replace(record, notes=tuple(notes))


class Row(NamedTuple):
    """A fork that rehearses one trial: what it sends, and what it prints."""

    pid: int
    channel: int
    printed: IO[bytes]


def run_rows(request: str, channel: int) -> None:
    """Rehearse trials of one baseline in forks of this process; pass on their records, each when it is asked for.

    As many forks run at once as there are processors. Ends where one ends without a result.
    """
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    since = asked(channel)
    by = partial(rehearse, told=_open(trials[0].case.device))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has no pool of threads
    os.environ["HOLLOW_FORKS"] = "1"
    torch.cuda._is_in_bad_fork = lambda: False
    with suppress(Exception):  # each fork fails in the same way, and says so
        assemble.prepare(trials[0])
    gc.freeze()  # so that collections in the forks need not scan it
    rows: list[Row] = []
    for place in range(len(trials)):
        since = asked(channel) if place else since
        if since is None:
            return
        for trial in trials[len(rows) : place + (os.cpu_count() or 1)]:
            rows.append(_begin(trial, since, num_threads, by))
        row = rows[place]
        while data := os.read(row.channel, 1 << 16):
            while data:
                data = data[os.write(channel, data) :]
        _, status = os.waitpid(row.pid, 0)
        row.printed.seek(0)
        sys.stdout.buffer.write(row.printed.read())
        sys.stdout.flush()
        if status:
            return


def _begin(trial: Trial, since: float, num_threads: int, by: Callable[..., Record]) -> Row:
    ours, theirs = os.pipe()
    printed, parent = tempfile.TemporaryFile(), os.getpid()  # noqa: SIM115  read when the fork has ended
    pid = os.fork()
    if pid:
        os.close(theirs)
        return Row(pid, ours, printed)
    status = 1
    try:
        die_with_parent(parent)
        for standard in (1, 2):
            os.dup2(printed.fileno(), standard)
        torch.set_num_threads(num_threads)
        start_seconds = time.monotonic() - since
        record = attempt(trial, on_pass=lambda stage: tell(theirs, {"stage": stage}), by=by)
        send(theirs, record, start_seconds)
        status = 0
    except BaseException:  # noqa: BLE001  a fork must never return into the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
