"""Words that users give their runs: `tags.json` in a run folder, beside what was measured and never part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError

FILE = "tags.json"
WORD = re.compile(r"\w[\w.+-]{0,39}")
MOST_BYTES = 64 << 10


def read(folder: Path) -> tuple[str, ...]:
    """The tags of a run, in the order they were given; none where the file holds something else."""
    try:
        with safe_files.opened(folder / FILE, most_bytes=MOST_BYTES) as file:
            words = msgspec.json.decode(file.read(), type=list[str])
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return ()
    return tuple(dict.fromkeys(word for word in words if WORD.fullmatch(word)))


def change(folder: Path, words: Iterable[str], *, remove: bool = False) -> tuple[str, ...]:
    """The tags of a run after words were added, or removed. Raises UserError for what is no tag, or not one of it."""
    before, words = read(folder), list(words)
    for word in words:
        if not WORD.fullmatch(word):
            raise UserError(f"'{word}' cannot be a tag", hint="letters, digits and _ . + -, at most 40")
        if remove and word not in before:
            raise UserError(f"this run has no tag '{word}'", hint=f"it has {', '.join(before) or 'none'}")
    kept = tuple(tag for tag in before if tag not in words) if remove else tuple(dict.fromkeys((*before, *words)))
    try:
        safe_files.write(folder / FILE, msgspec.json.encode(kept) + b"\n")
    except OSError as error:
        message = f"cannot write '{folder / FILE}': {error.strerror}"
        raise UserError(message, hint="a tag stands in the run's folder", exit_code=74) from None
    return kept
