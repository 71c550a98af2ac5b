"""The program with a hook of Python's that writes down what it opens, imports, starts and connects to.

`python -m tests.attack.audited EVENTS WORD...` runs `gcprof WORD...`, and appends a line of JSON for each event.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.attack.watch import EVENTS


def audit(file: Path) -> None:
    """Write every event from now on into a file: its name, and its first argument, a path as an absolute one."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and not (event == "open" and isinstance(arguments[0], int)):
            first = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else repr(arguments[0])
            place = os.path.join(os.getcwd(), first) if event == "open" else first
            os.write(descriptor, json.dumps([event, place]).encode() + b"\n")

    sys.addaudithook(look)


if __name__ == "__main__":
    _, events, *words = sys.argv
    audit(Path(events))
    from profiler.cli import main

    main(words)
