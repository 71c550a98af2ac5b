"""Errors that the user or the machine causes, to be shown as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A request that cannot be carried out: what is wrong with which value, and what to try.

    Caught once, in the command line, which prints one line and ends with `exit_code`
    (2 usage, 3 no such device, 4 unreadable results, 74 cannot write).
    """

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        if hint is not None:
            self.add_note(f"hint: {hint}")  # Python shows it below the message, where nobody catches this
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class Unsupported(Exception):
    """A strategy cannot be applied to this model: the row is there, skipped, with this reason."""


class NotOnce(Unsupported):
    """Blocks do not run once each, in order."""


class Invalid(Exception):
    """A step that trains nothing: the row is there, invalid, with this reason and without numbers."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """A hint that names the known word most like this one; None where none is like it."""
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else None
