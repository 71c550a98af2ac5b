"""The client's end of the fork server, and one child of it from its request to its end: what it sent, log, limits."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from profiler.core import server_process
from profiler.core.errors import UserError
from profiler.core.safe_files import hide_bytes
from profiler.engines import killer
from profiler.rehearsal.device import prepare_if_asked
from profiler.rehearsal.smoke import proven_libraries

STAGE = b'{"stage":'  # begins the message of a stage; any other line is a result
LOG_BYTES = 1 << 20  # of each child's output; of the rest, its size and the last TAIL_BYTES are kept
TAIL_BYTES = 4096
LINE_BYTES = 1 << 16  # that are held back until a line ends
NUMBERS = count(1)  # of the requests of this process
GRACE_SECONDS = 2.0  # between asking a child to end and killing it


class Stage(msgspec.Struct):
    stage: str
    step: str | None = None  # what it does now, in words


class Server:
    """A running fork server; the one that the command started early, if that is of this kind."""

    def __init__(self, visible: str | None, *, rehearses: bool = False, preload: Sequence[str]) -> None:
        if rehearses:
            proven_libraries()
        else:
            prepare_if_asked()
        try:
            early = server_process.take(() if visible else preload)
            started = early or server_process.start(preload, visible=visible, rehearses=rehearses)
        except OSError as error:
            raise not_started(error) from error
        self.process, self.control, self._errors, _ = started
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


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended. `status` is its exit code, minus a signal's number, or None where the server died too."""

    status: int | None
    stage: str
    timed_out: bool = False
    limit: float = 0.0
    refused: str | None = None  # why the system could not start it

    def describe(self) -> str:
        """Return the end in words: the exit code or signal, the stage, and the likely cause."""
        if self.refused:
            return f"no process could be started for it: {self.refused}"
        if self.timed_out:
            return f"{self.stage} took longer than {self.limit:g} s (--stage-limit)"
        if self.status is None:
            return f"lost in {self.stage}: the server process died"
        if self.status >= 0:
            return f"ended in {self.stage} with exit code {self.status}"
        return f"killed in {self.stage} by {killer(self.status)}"


class Child:
    """A child as a context manager: requests it from the server on entry, kills it on exit if it still runs.

    It sends each stage as it begins, and a line with each result when it is asked for one: the first on entry, the next
    by `go_on`.
    """

    def __init__(
        self, control: socket.socket, entry: str, text: str, *, needs: Sequence[str] = (), log: Path | None
    ) -> None:
        """The server imports the modules that the child `needs` first."""
        self.lines: list[bytes] = []  # the results
        self.torn = b""  # what it sent last, if it ended in the middle of a line
        self.on_stage: Callable[[str], None] = lambda stage: None  # called with every stage, and with its steps
        self._control = control
        self._number = next(NUMBERS)
        folder = None
        with suppress(FileNotFoundError):  # it no longer exists
            folder = os.getcwd()
        request = {"number": self._number, "entry": entry, "needs": needs, "text": text, "folder": folder}
        self._request = json.dumps(request).encode() + b"\n"
        self.log = Log(log)
        self._pid: int | None = None
        self._stage = "start"
        self._status: int | None = None
        self._refused: str | None = None
        self._ended = False
        self._said = b""

    def __enter__(self) -> Child:
        try:
            (ours, channel), (self._output, output) = socket.socketpair(), os.pipe()
        except OSError as error:
            raise not_started(error) from error
        self._channel = ours.detach()
        self._open: dict[int, Callable[[bytes], None]] = {self._channel: self._take_lines}
        self._open[self._output] = lambda data: self.log.write(data)  # `go_on` replaces the log
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._ask()
        try:
            socket.send_fds(self._control, [self._request[:1]], [channel.fileno(), output])
            self._control.sendall(self._request[1:])
        except OSError:
            self._ended = True
        finally:
            channel.close()
            os.close(output)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._ended:
            self._kill(signal.SIGKILL)
        os.close(self._channel)
        os.close(self._output)
        self.log.close()

    def wait(self, limit: float, *, until_result: bool = False) -> Ended:
        """Follow the child until it ends or has sent a result; end it if a stage takes longer than `limit` seconds."""
        stage, since = self._stage, time.monotonic()
        while not self._ended:
            if until_result and self.lines:
                return Ended(status=0, stage=self._stage)
            left = since + limit - time.monotonic()
            if left <= 0:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    if not self._ended:
                        self._kill(number)
                return Ended(status=self._status, stage=stage, timed_out=True, limit=limit)
            self._read(left)
            if self._stage != stage:
                stage, since = self._stage, time.monotonic()
        until = time.monotonic() + GRACE_SECONDS  # a process that the child detached may write forever
        for descriptor in list(self._open):  # what it wrote before its end
            while self._read_pipe(descriptor) and time.monotonic() < until:
                continue
        return Ended(status=self._status, stage=self._stage, refused=self._refused)

    def go_on(self, log: Path | None) -> None:
        """Ask for the next result, after one has come; the child's output goes to another log from now on."""
        while self._output in self._open and self._read_pipe(self._output):
            continue
        self.log.close()
        self.log, self.lines, self._stage = Log(log), [], "start"
        self._ask()

    def _ask(self) -> None:
        with suppress(ConnectionError):  # it has ended, which the next read finds
            os.write(self._channel, b"%r\n" % time.monotonic())

    def _kill(self, number: int) -> None:
        """Have the server signal the child and its group, and give it time to end."""
        until = time.monotonic() + GRACE_SECONDS
        while self._pid is None and not self._ended and time.monotonic() < until:
            self._read(until - time.monotonic())
        try:
            self._control.sendall(json.dumps({"kill": self._pid, "signal": number}).encode() + b"\n")
        except OSError:
            self._ended = True
        while not self._ended and time.monotonic() < until:
            self._read(until - time.monotonic())

    def _read(self, seconds: float) -> None:
        control = self._control.fileno()
        ready, _, _ = select.select([control, *self._open], [], [], max(0.0, seconds))
        for descriptor in ready:
            if descriptor != control:
                self._read_pipe(descriptor)
                continue
            data = self._control.recv(1 << 16)
            if not data:
                self._ended = True
            *lines, self._said = (self._said + data).split(b"\n")
            for message in map(json.loads, lines):
                if message.get("number") == self._number:  # not a late message about an earlier child
                    self._pid = message["pid"]
                    self._status = message.get("status")
                    self._refused = message.get("refused")
                    self._ended = "status" in message or self._refused is not None

    def _read_pipe(self, descriptor: int) -> bool:
        """Read what is there; return False if nothing is. A pipe that has no writer anymore is no longer watched."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # it ended before it read what it was asked
            data = b""
        if data:
            self._open[descriptor](data)
        else:
            del self._open[descriptor]
        return bool(data)

    def _take_lines(self, data: bytes) -> None:
        *lines, self.torn = (self.torn + data).split(b"\n")
        for line in lines:
            if not line.startswith(STAGE):
                self.lines.append(line)
                continue
            try:
                message = msgspec.json.decode(line, type=Stage)
            except msgspec.DecodeError:
                self.lines.append(line)
                continue
            self._stage = message.stage
            self.on_stage(message.step or message.stage)


class Log:
    """A log file: the first LOG_BYTES, how many bytes were left out, and the last TAIL_BYTES; without secrets."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._held = b""  # the unfinished line
        self._tail = b""  # the end of what was printed
        self._num_bytes = 0
        if path:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # the output of an earlier child: this one may print nothing

    def write(self, data: bytes, *, is_last: bool = False) -> None:
        data = hide_bytes(self._held + data)
        end = len(data) if is_last or len(data) > LINE_BYTES else data.rfind(b"\n") + 1
        data, self._held = data[:end], data[end:]
        self._store(data[: max(0, LOG_BYTES - self._num_bytes)])
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._num_bytes += len(data)

    def last_line(self) -> str:
        lines = (self._tail + self._held).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        """Write how much was left out, and the end of what was printed."""
        self.write(b"", is_last=True)
        if left_out := max(0, self._num_bytes - LOG_BYTES - len(self._tail)):
            self._store(f"\n[gcprof: {left_out} more bytes left out]\n".encode())
        if self._num_bytes > LOG_BYTES:
            self._store(self._tail[LOG_BYTES - self._num_bytes :])

    def _store(self, data: bytes) -> None:
        with suppress(OSError):  # such as a full disk: a lost log must not lose a result
            if data and self._path:
                self._path.parent.mkdir(exist_ok=True)
                with self._path.open("ab") as file:
                    file.write(data)


def not_started(error: OSError) -> UserError:
    """Return the error to raise if the system provides no process, socket or pipe."""
    message = f"this machine cannot start a process for a trial: {error.strerror or error}"
    hint = "end other programs, or raise the limits (ulimit -u, ulimit -n); every result that was printed is kept"
    return UserError(message, hint=hint, exit_code=3)
