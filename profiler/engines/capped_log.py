"""A log file of bounded size, for the output of a child."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

from profiler.core import safe_files
from profiler.core.secret_filter import LONGEST, border, hide_bytes

LOG_BYTES = 1 << 20  # of each child's output; of the rest, its size and the last TAIL_BYTES are kept
TAIL_BYTES = 4096
LONGEST_LINE = 4096  # bytes that are held back until a line ends


class Log:
    """A log file without secrets: the first LOG_BYTES, how many bytes were left out, and the last TAIL_BYTES.

    Secrets are hidden before anything is cut; bytes are held back because they may be the beginning of one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._size = 0
        self._held = bytearray()  # the unfinished line; once the file is full, the end of the output
        self._num_passed = 0  # bytes passed on to the file before it was full
        self._is_full = False
        self._shown = b""  # the end of what was written
        self._remove_earlier()

    def write(self, data: bytes) -> None:
        self._size += len(data)
        self._held += data
        if not self._is_full:
            self._pass_on()
        if self._is_full and len(self._held) > 2 * (TAIL_BYTES + LONGEST):
            del self._held[: -TAIL_BYTES - LONGEST]

    def last_line(self) -> str:
        lines = (self._shown + hide_bytes(self._end())).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        """Write how much was left out, and the end of what was printed; then close the file."""
        rest = self._end() if self._is_full else bytes(self._held)
        left_out = self._size - self._num_passed - len(rest)
        if left_out:
            self._write(f"\n[gcprof: {left_out} more bytes left out]\n".encode())
        self._write(rest)
        self._held.clear()
        if self._file:
            self._file.close()

    def _pass_on(self) -> None:
        """Write whole lines; of an unfinished line of 2 * LONGEST_LINE or more, write all but the last LONGEST_LINE."""
        room = LOG_BYTES - self._num_passed
        end, half = self._held.rfind(b"\n") + 1, len(self._held) - LONGEST_LINE
        if half >= min(room, LONGEST_LINE):
            end = max(end, half)
        if end:
            self._is_full = end >= room
            cut = border(bytes(self._held), min(end, room))
            self._write(bytes(self._held[:cut]))
            del self._held[:cut]
            self._num_passed += cut

    def _end(self) -> bytes:
        """Return the last TAIL_BYTES of what is held, and all of a secret that begins before them."""
        held = bytes(self._held)
        return held[border(held, max(0, len(held) - TAIL_BYTES)) :]

    def _write(self, data: bytes) -> None:
        """Write data with secrets hidden and every other byte as it is."""
        hidden = hide_bytes(data)
        self._shown = (self._shown + hidden)[-TAIL_BYTES:]
        if not (hidden and self._path):
            return
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._file or safe_files.anew(self._path)
            self._file.write(hidden)
        except OSError:  # such as a full disk: a lost log must not lose a result
            self._path = None

    def _remove_earlier(self) -> None:
        """Remove the output of an earlier child: this one may print nothing."""
        try:
            if self._path:
                self._path.unlink(missing_ok=True)
        except OSError:
            self._path = None
