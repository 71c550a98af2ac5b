"""What Python and PyTorch warn of while a step runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KINDS = (UserWarning, RuntimeWarning)  # of what this step does; what a later version changes is not of it
MOST_NAMED = 3
LONGEST = 300  # characters of one
TRIGGERED = re.compile(r" \(Triggered internally at [^)]*\)")  # where in PyTorch's own sources


class StepWarnings:
    """Collects the first lines of warnings, each once; they are shown as they would be without."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen while the block runs; what was shown once before is shown, and heard, again."""
        with warnings.catch_warnings():
            show = warnings.showwarning

            def hear(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
                if issubclass(category, KINDS):
                    self.lines[_first_line(str(message))] = None
                show(message, category, *where, **more)

            warnings.showwarning = hear
            yield

    def __str__(self) -> str:
        lines = list(self.lines)
        more = len(lines) - MOST_NAMED
        return "; ".join([*lines[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _first_line(text: str) -> str:
    line = TRIGGERED.sub("", text.strip().partition("\n")[0])
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
