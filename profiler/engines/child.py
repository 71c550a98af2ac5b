"""One child of the fork server, from its request to its end: messages, log, time limits, out-of-memory kills."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.errors import UserError
from profiler.core.secret_filter import hide_bytes
from profiler.core.units import count_text
from profiler.engines.capped_log import LOG_BYTES, Log

SHOWN_BYTES = 1024  # of a rejected message, in the log
MESSAGE_BYTES = 64 << 20  # of all that a child may send
NUMBERS = count(1)  # of the requests of this process
GRACE_SECONDS = 2.0  # between asking a child to end and killing it
MEMBERSHIP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended. `status` is its exit code, minus a signal's number, or None where the server died too."""

    status: int | None
    stage: str
    timed_out: bool = False
    limit: float = 0.0
    memory_kills: int | None = None  # out-of-memory kills that the control group counted meanwhile; None if unknown
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
        number = -self.status
        is_known = number in {known_signal.value for known_signal in signal.Signals}
        name = signal.Signals(number).name if is_known else f"signal {number}"
        return f"killed in {self.stage} by {name}{self._likely() if name == 'SIGKILL' else ''}"

    def _likely(self) -> str:
        if self.memory_kills:
            return f": out of host memory: its control group counts {count_text(self.memory_kills, 'kill')} for that"
        counted = ", though its control group counts no kill for that" if self.memory_kills == 0 else ""
        return f": possibly out of host memory{counted}"


class Child:
    """A child as a context manager: requests it from the server on entry, kills it on exit if it still runs."""

    def __init__(
        self,
        control: socket.socket,
        entry: str,
        text: str,
        *,
        needs: Sequence[str] = (),
        log: Path | None,
        is_asked: bool = False,
    ) -> None:
        """The server imports the modules that the child `needs` first.

        With `is_asked` the channel has two directions, and `go_on` asks for the next of several results.
        """
        self.messages: list[dict[str, Any]] = []
        self.damage: str | None = None  # why its messages cannot be trusted
        self.flooded = False  # it sent more than MESSAGE_BYTES, and is ended for that
        self._control = control
        self._number = next(NUMBERS)
        request = {"number": self._number, "entry": entry, "needs": needs, "text": text, "folder": _folder()}
        self._request = json.dumps(request).encode() + b"\n"
        self._log = Log(log)
        self._is_asked = is_asked
        self.on_stage: Callable[[str], None] = lambda stage: None  # called with every stage, and with its steps
        self._pid: int | None = None
        self._stage = "start"
        self._status: int | None = None
        self._refused: str | None = None
        self._ended = False
        self._said = b""
        self._received = b""
        self._num_received = 0
        self._memory_kills = memory_kills()

    def __enter__(self) -> Child:
        try:
            self._channel, channel = _channel(is_asked=self._is_asked)
        except OSError as error:
            raise not_started(error) from error
        try:
            self._output, output = os.pipe()
        except OSError as error:
            os.close(self._channel)
            os.close(channel)
            raise not_started(error) from error
        self._open: dict[int, Callable[[bytes], None]] = {self._channel: self._take_messages}
        self._open[self._output] = lambda data: self._log.write(data)  # `go_on` replaces the log
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        try:
            socket.send_fds(self._control, [self._request[:1]], [channel, output])
            self._control.sendall(self._request[1:])
        except OSError:
            self._ended = True
        finally:
            os.close(channel)
            os.close(output)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._ended:
            self._kill(signal.SIGKILL)
        os.close(self._channel)
        os.close(self._output)
        self._log.close()

    def wait(self, limit: float, *, until: str | None = None) -> Ended:
        """Follow the child until it ends; end it if one stage takes longer than `limit` seconds.

        With `until`, return at the first message with that key.
        """
        stage, since = self._stage, time.monotonic()
        while not self._ended:
            if until is not None and any(until in message for message in self.messages):
                return Ended(status=0, stage=self._stage)
            left = since + limit - time.monotonic()
            if left <= 0 or self.flooded:
                return self._stop(limit, timed_out=left <= 0)
            self._read(left)
            if self._stage != stage:
                stage, since = self._stage, time.monotonic()
        self._drain()
        if self._received:
            self._spoil(self._received, "what it sent ends in the middle")
        before, now = self._memory_kills, memory_kills()
        meanwhile = None if before is None or now is None else now - before
        return Ended(status=self._status, stage=self._stage, memory_kills=meanwhile, refused=self._refused)

    def go_on(self, log: Path | None) -> None:
        """Ask for the next result, after one has come; the child's output goes to another log from now on."""
        while self._output in self._open and self._read_pipe(self._output):
            continue
        self._log.close()
        self._log, self.messages, self._stage, self._num_received = Log(log), [], "start", 0
        with suppress(ConnectionError):  # it has ended, which the next read finds
            os.write(self._channel, b"\n")

    def last_words(self) -> str:
        """The last line that the child printed."""
        return self._log.last_line()

    def keep(self, sent: bytes) -> None:
        """Write a rejected message to the log, as Python shows bytes."""
        shown = hide_bytes(sent[:LOG_BYTES])[:SHOWN_BYTES]  # before `!r` changes how a secret looks
        self._log.write(f"\n[gcprof: no result: {shown!r}]\n".encode())

    def _stop(self, limit: float, *, timed_out: bool) -> Ended:
        late = self._stage
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self._ended:
                self._kill(number)
        return Ended(status=self._status, stage=late, timed_out=timed_out, limit=limit)

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
            if descriptor == control:
                self._read_control()
            else:
                self._read_pipe(descriptor)

    def _drain(self) -> None:
        """Read what the child wrote before its end."""
        until = time.monotonic() + GRACE_SECONDS  # a process that the child detached may write forever
        for descriptor in list(self._open):
            while self._read_pipe(descriptor) and time.monotonic() < until:
                continue

    def _read_pipe(self, descriptor: int) -> bool:
        """Read what is there; return False if nothing is. A pipe that has no writer anymore is no longer watched."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # it ended before it read what it was asked
            data = b""
        if not data:
            del self._open[descriptor]
            return False
        self._open[descriptor](data)
        return True

    def _take_messages(self, data: bytes) -> None:
        """Take whole lines as messages; reject all if the child sends more than MESSAGE_BYTES."""
        self._num_received += len(data)
        if self._num_received > MESSAGE_BYTES:
            if not self.flooded:
                self._spoil(self._received + data, f"it sent more than {MESSAGE_BYTES >> 20} MiB")
            self.flooded, self._received = True, b""
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            parts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])  # a record is decoded once, as what it is
            message: dict[str, Any] = {
                key: part if key == "record" else msgspec.json.decode(part) for key, part in parts.items()
            }
        except (msgspec.DecodeError, ValueError, RecursionError):
            message = {"stage": None}
        if not all(isinstance(message.get(key, ""), str) for key in ("stage", "step")):
            self._spoil(line, "what it sent is not a result")
            return
        self.messages.append(message)
        if "stage" in message:
            self._stage = message["stage"]
            self.on_stage(message.get("step", self._stage))

    def _spoil(self, sent: bytes, why: str) -> None:
        self.damage = self.damage or why
        self.keep(sent)

    def _read_control(self) -> None:
        data = self._control.recv(1 << 16)
        if not data:
            self._ended = True
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for message in map(json.loads, lines):
            if message.get("number") == self._number:  # not a late message about an earlier child
                self._pid = message["pid"]
                self._status = message.get("status")
                self._refused = message.get("refused")
                self._ended = "status" in message or self._refused is not None


def _channel(*, is_asked: bool) -> tuple[int, int]:
    """Return our end and the child's."""
    if not is_asked:
        return os.pipe()
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def not_started(error: OSError) -> UserError:
    """Return the error to raise if the system provides no process, socket or pipe."""
    message = f"this machine cannot start a process for a trial: {error.strerror or error}"
    hint = "end other programs, or raise the limits (ulimit -u, ulimit -n); every result that was printed is kept"
    return UserError(message, hint=hint, exit_code=3)


def _folder() -> str | None:
    """Return the current folder; None if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def memory_kills() -> int | None:
    """Return the number of out-of-memory kills in this control group; None if the kernel does not report it."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [_count(path) for line in lines for path in _counters(*line.split(":", 2)[1:])]
    return next((count for count in counts if count is not None), None)


def _counters(controllers: str, group: str) -> list[Path]:
    """Return the files that may hold the count; in a container the group's own folder is often the mount itself."""
    if controllers == "":
        return [MOUNT / group.lstrip("/") / "memory.events", MOUNT / "memory.events"]
    if "memory" in controllers.split(","):
        return [MOUNT / "memory" / group.lstrip("/") / "memory.oom_control", MOUNT / "memory" / "memory.oom_control"]
    return []


def _count(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if word[0] == "oom_kill"), None)
