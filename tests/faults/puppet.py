"""A fork server that starts nothing: its children send what they are told to, and end. Knows nothing of results."""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any


class Puppet:
    """Stands in for the server of an engine; `sent` goes down each child's channel, `printed` to its output.

    A child without a status goes on until it is killed.
    """

    def __init__(self, sent: bytes, *, status: int | None = 0, printed: bytes = b"") -> None:
        self._sent, self._status, self._printed = sent, status, printed
        self._ours, self._theirs = socket.socketpair()
        self._number = 0
        self.control = self

    def await_ready(self) -> None:
        """It has nothing to import."""

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    # What a client does with its socket

    def fileno(self) -> int:
        return self._ours.fileno()

    def recv(self, count: int) -> bytes:
        return self._ours.recv(count)

    def sendmsg(self, buffers: list[bytes], control: list[tuple[int, int, Any]]) -> int:
        """Both descriptors come here; what a child would write is written at once, and fits into a pipe."""
        self._begun = b"".join(buffers)
        ((_, _, descriptors),) = control
        channel, output = array.array("i", descriptors)
        os.write(channel, self._sent)
        os.write(output, self._printed)
        return len(self._begun)

    def sendall(self, data: bytes) -> None:
        request = json.loads(self._begun + data)
        self._begun = b""
        if "kill" in request:
            self._say({"pid": 1, "status": -request["signal"]})
        else:
            self._number = request["number"]
            self._say({"pid": 1} if self._status is None else {"pid": 1, "status": self._status})

    def _say(self, message: dict[str, int]) -> None:
        self._theirs.sendall(json.dumps({"number": self._number, **message}).encode() + b"\n")
