"""The client's end of the fork server: its process, and the socket to it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from profiler.core import server_process
from profiler.core.errors import UserError
from profiler.engines.child import not_started
from profiler.rehearsal.device import prepare_if_asked
from profiler.rehearsal.smoke import proven_libraries


class Server:
    """A running fork server; the one that the command started early, if that is of this kind."""

    def __init__(self, visible: str | None, *, rehearses: bool = False, preload: Sequence[str]) -> None:
        if rehearses:
            proven_libraries()
        else:
            prepare_if_asked()
        early = server_process.take(() if visible else preload)
        try:
            started = early or server_process.start(preload, visible=visible, rehearses=rehearses)
        except OSError as error:
            raise not_started(error) from error
        self.control, self.process, self._errors = started.control, started.process, started.errors
        self._is_ready = False

    def await_ready(self) -> None:
        """Wait until it has imported its modules. Raises UserError if that fails."""
        if self._is_ready:
            return
        self._is_ready = bool(self.control.recv(1 << 16))
        if not self._is_ready:
            self.process.wait()
            self._errors.seek(0)
            last = (self._errors.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            message = f"the server process could not import torch: {last}"
            raise UserError(message, hint="`gcprof doctor` shows more", exit_code=3)

    def alive(self) -> bool:
        return self.process.poll() is None

    def hang_up(self) -> None:
        """Shut the socket down, so that the server ends as if the client were gone."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.control.close()  # the server kills its children and ends
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()
