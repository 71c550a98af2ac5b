"""Starts the process of the fork server, early or on demand. Imports little, since commands begin with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import IO, NamedTuple

_WORKER = "profiler.engines.worker"
# All that a trial imports, and what torch imports late, which would cost each child 1.8 s at its first profiler use.
PRELOAD = ("torch", "torch.profiler", "torch._dynamo", "torch.utils.checkpoint", _WORKER)
PRELOAD_TO_REHEARSE = ("torch", "torch.utils.checkpoint", _WORKER)  # the compiler comes late, if at all
PRELOAD_TO_TRACE = (
    "torch",
    "torch.distributed.tensor",  # PyTorch's C++ code looks up a class of it at the first fake tensor
    "torch.fx.experimental.symbolic_shapes",
    "torch.utils.checkpoint",
    _WORKER,
)
EARLY = {  # what a command will most likely need, and what takes more than a second to import
    **dict.fromkeys(("rehearse", "predict", "explain", "timeline"), PRELOAD_TO_REHEARSE),
    "blocks": PRELOAD_TO_TRACE,
    **dict.fromkeys(("run", "plan", "stages", "fit"), PRELOAD),
}
ESTIMATED = ("fake:", "cpu", "--routing", "--calibrate")  # words with which nothing is rehearsed begin so
NOT_EARLY = ("-h", "--help", "--dry-run", "--engine", "--shard", "--stages", "--from")  # may need no local server
ASKED = "GCPROF_HOLLOW"  # asks for a hollow device, which must be built first
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from profiler.engines.forkserver import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[5:], rehearses=bool(int(sys.argv[4])))"
)


class ServerProcess(NamedTuple):
    """A server process, the control socket to it, and its output, which has its error messages."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    errors: IO[bytes]
    preload: Sequence[str]

    def drop(self) -> None:
        """Kill a server that has received no request."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        self.errors.close()


_early: list[ServerProcess] = []


def start_early(words: Sequence[str]) -> None:
    """Start the server that a command will most likely need, before its arguments are parsed."""
    preload = _preload(words)
    if not preload or ASKED in os.environ:
        return
    with suppress(OSError):
        for number in range(3):
            os.fstat(number)  # raises if one is closed: the next file to be opened would get its number
        _early.append(start(preload, rehearses=preload is PRELOAD_TO_REHEARSE))


def _preload(words: Sequence[str]) -> Sequence[str]:
    """Return what the command's server imports; nothing if it may need none."""
    usual = EARLY.get(words[0], ()) if words else ()
    if not usual or any(word.partition("=")[0] in NOT_EARLY or word == "--" or word.endswith(".py") for word in words):
        return ()
    if any("rehearse" in word for word in words):
        return PRELOAD_TO_REHEARSE
    is_estimated = any(word.removeprefix("--device=").startswith(ESTIMATED) for word in words)
    is_of_all = words[0] == "fit" and not any(word.startswith(("--memory", "--device")) for word in words)
    devices = [after for word, after in pairwise(words) if word == "--device"]
    devices += [word.partition("=")[2] for word in words if word.startswith("--device=")]
    names_a_gpu = any(not word.startswith(("auto", "cuda")) for word in devices)  # and none of this machine
    if is_of_all or (words[0] in ("plan", "stages", "fit") and not is_estimated and names_a_gpu):
        return PRELOAD_TO_REHEARSE
    return PRELOAD_TO_TRACE if usual is PRELOAD_TO_REHEARSE and is_estimated else usual


def take(preload: Sequence[str]) -> ServerProcess | None:
    """Return the server that was started early if it has these preloads; a server with others is killed."""
    if not _early:
        return None
    early = _early.pop()
    if tuple(early.preload) == tuple(preload):
        return early
    early.drop()
    return None


def start(preload: Sequence[str], *, visible: str | None = None, rehearses: bool = False) -> ServerProcess:
    """Start a server that imports these modules; `visible` is the only CUDA device that it sees. Raises OSError."""
    seen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environment = {**os.environ, "KINETO_LOG_LEVEL": "5", **seen}  # the profiler is chatty on stderr
    control, theirs = socket.socketpair()
    python = [sys.executable, "-P", "-c", BOOT]  # -P: a json.py in the current folder must not be imported
    try:
        with theirs:
            errors = _nameless()
            words = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), str(int(rehearses)), *preload]
            process = subprocess.Popen(
                [*python, *words], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                env=environment, start_new_session=True,
            )  # fmt: skip
    except OSError:
        control.close()
        raise
    return ServerProcess(process, control, errors, preload)


def _nameless() -> IO[bytes]:
    """Return an anonymous file: in memory if possible, since the temporary folder may be missing or full."""
    with suppress(AttributeError, OSError):  # not every system has it, and not every sandbox allows it
        return os.fdopen(os.memfd_create("gcprof"), "w+b")
    return tempfile.TemporaryFile()
