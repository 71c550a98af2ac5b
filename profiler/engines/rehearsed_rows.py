"""Rehearses several trials of one baseline: their model is made once, and each trial runs in a fork of this process.

A hollow device is memory of this process, so that a fork has it, and the model on it (HOLLOW_FORKS). PyTorch refuses
CUDA in a fork, which real devices do not survive, and is told otherwise here. Nothing before the forks may run a
backward, whose threads a fork does not have.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

import torch

from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.engines.forkserver import die_with_parent
from profiler.engines.replies import asked, attempt, send, started, tell
from profiler.training import assemble


class Row(NamedTuple):
    """A fork that rehearses one trial: what it sends, and what it prints."""

    pid: int
    channel: int
    printed: IO[bytes]


def run(trials: Sequence[Trial], channel: int, since: float | None, *, by: Callable[..., Record]) -> None:
    """Pass on what each trial's fork sends, each when it is asked for; the first was asked for at `since`.

    As many forks run at once as there are processors. Ends where one ends without a result.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has no pool of threads
    os.environ["HOLLOW_FORKS"] = "1"
    torch.cuda._is_in_bad_fork = lambda: False
    with suppress(Exception):  # each fork fails in the same way, and says so
        assemble.prepare(trials[0])
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
        send(theirs, started(record, start_seconds))
        status = 0
    except BaseException:  # noqa: BLE001  a fork must never return into the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
