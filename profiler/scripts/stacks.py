"""Where each process of a command was when its limit ended it: the main thread's stack, as `faulthandler` writes it.

The watch opens a file for it beside its own, RANK.PID.stack, and has `faulthandler` write there on a signal; then it
tells the phase that is not at its end yet, where the process is not within C code.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 20  # as in the watch; no launcher's and no script's
TOLD = "told"  # behind a stack, once the phase is told as well
POLL_SECONDS = 0.05
WAIT_SECONDS = 3.0  # a stack is written within milliseconds; a process within C code tells no phase
MOST_LINES = 3  # of the user's, the innermost first
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3[.\d]*[/\\]|[/\\]scripts[/\\]inject[/\\]|^<")


def ask(scratch: Path) -> None:
    """Have each watched process write its stack and tell its phase, and wait until they have."""
    asked = []
    for path in scratch.glob("*.stack"):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(path.stem.rpartition(".")[2]), SIGNAL)
            asked.append(path)
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until and not all(path.read_text(errors="replace").endswith(TOLD) for path in asked):
        time.sleep(POLL_SECONDS)


def read(scratch: Path) -> tuple[str, ...]:
    """Return for each rank, or where there are none for each process, the lines that it was at.

    A launcher of ranks has no rank, and is not told.
    """
    written = {path.stem: path.read_text(errors="replace") for path in sorted(scratch.glob("*.stack"))}
    ranks = {name: text for name, text in written.items() if text and not name.startswith("-")}
    return tuple(_told(ranks or {name: text for name, text in written.items() if text}))


def _told(stacks: dict[str, str]) -> Iterator[str]:
    for name, text in stacks.items():
        rank, _, number = name.partition(".")
        frames = list(FRAME.finditer(text))
        own = [frame for frame in frames if not LIBRARY.search(frame["file"])]
        if not frames:
            continue
        who = f"process {number}" if rank == "-" else f"rank {rank}"
        lines = ", called at ".join(f"{os.path.basename(frame['file'])}:{frame['line']}" for frame in own[:MOST_LINES])
        inner = f"{frames[0]['function']} ({os.path.basename(frames[0]['file'])}:{frames[0]['line']})"
        within = f"in {inner}" if not own or own[0] is not frames[0] else ""
        yield " ".join(filter(None, (f"{who} was at" if own else f"{who} was", lines, within)))
