"""A log file of bounded size, for the output of a child."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from profiler.core import safe_files
from profiler.core.secret_filter import hide_bytes

LOG_BYTES = 1 << 20  # of each child's output; of the rest, its size and the last TAIL_BYTES are kept
TAIL_BYTES = 4096
LINE_BYTES = 1 << 16  # that are held back until a line ends


class Log:
    """A log file: the first LOG_BYTES, how many bytes were left out, and the last TAIL_BYTES.

    Secrets are hidden within what arrives together and the line before it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._held = b""  # the unfinished line
        self._tail = b""  # the end of what was passed on
        self._room = LOG_BYTES
        self._left_out = 0
        if path:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # the output of an earlier child: this one may print nothing

    def write(self, data: bytes) -> None:
        self._held = hide_bytes(self._held + data)
        end = len(self._held) if len(self._held) > LINE_BYTES else self._held.rfind(b"\n") + 1
        if end:
            self._pass_on(self._held[:end])
            self._held = self._held[end:]

    def last_line(self) -> str:
        lines = (self._tail + self._held).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        """Write how much was left out, and the end of what was printed; then close the file."""
        self._pass_on(self._held)
        self._held = b""
        tail = self._tail[-self._left_out :] if self._left_out else b""
        if self._left_out > len(tail):
            self._store(f"\n[gcprof: {self._left_out - len(tail)} more bytes left out]\n".encode())
        self._store(tail)
        if self._file:
            self._file.close()

    def _pass_on(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._store(data[: self._room])
        self._left_out += max(0, len(data) - self._room)
        self._room -= min(self._room, len(data))

    def _store(self, data: bytes) -> None:
        if not (data and self._path):
            return
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._file or safe_files.anew(self._path)
            self._file.write(data)
        except OSError:  # such as a full disk: a lost log must not lose a result
            self._path = None
