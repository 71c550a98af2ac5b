"""What this process does while it is watched: files opened, modules imported, processes and sockets made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROCESSES = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "os.spawn")
SOCKETS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo")
EVENTS = ("open", "import", *PROCESSES, *SOCKETS)

_seen: list[tuple[str, str]] | None = None
_is_hooked = False


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if _seen is not None and event in EVENTS:
        _seen.append((event, str(arguments[0]) if arguments else ""))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Every event of these as its name and its first argument; a hook cannot be taken away, so there is one."""
    global _seen, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_look)
        _is_hooked = True
    _seen = seen = []
    try:
        yield seen
    finally:
        _seen = None
