"""The client's end of the fork server: its process, and the socket to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from profiler.core.errors import UserError
from profiler.engines.child import not_started
from profiler.rehearsal.device import prepare_if_asked
from profiler.rehearsal.smoke import proven_libraries

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from profiler.engines.forkserver import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[5:], rehearses=bool(int(sys.argv[4])))"
)


class Server:
    """A fork server that was started."""

    def __init__(self, visible: str | None, *, rehearses: bool = False, preload: Sequence[str]) -> None:
        self._preload = preload
        if rehearses:
            proven_libraries()
        else:
            prepare_if_asked()
        seen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        environment = {**os.environ, "KINETO_LOG_LEVEL": "5", **seen}  # the profiler is chatty on stderr
        try:
            self.control, theirs = socket.socketpair()
            with theirs:
                self._start(theirs.fileno(), environment, rehearses=rehearses)
        except OSError as error:
            raise not_started(error) from error
        if not self.control.recv(1 << 16):
            self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(
                f"the server process could not import torch: {last}", hint="`gcprof doctor` tells more", exit_code=3
            )

    def _start(self, descriptor: int, environment: dict[str, str], *, rehearses: bool) -> None:
        """Raises OSError; then the socket is closed."""
        python = [sys.executable, "-P", "-c", _BOOT]  # -P: a json.py in the folder at hand is none of its modules
        words = [*python, json.dumps(sys.path), str(descriptor), str(os.getpid()), str(int(rehearses)), *self._preload]
        try:
            self._errors = _nameless()
            self._process = subprocess.Popen(
                words, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self.control.close()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    def hang_up(self) -> None:
        """Shut the socket down, so that the server ends as if the client were gone."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.control.close()  # the server kills its children and ends
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _nameless() -> IO[bytes]:
    """Returns an anonymous file: in memory where possible, since the temporary folder may be missing or full."""
    with suppress(AttributeError, OSError):  # not every system has it, and not every sandbox allows it
        return os.fdopen(os.memfd_create("gcprof"), "w+b")
    return tempfile.TemporaryFile()
