"""TOML files that anyone may have written: of bounded size, nesting and numbers. Knows not what they mean."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from profiler.core.errors import UserError
from profiler.core.limits import LARGEST, levels

FILE_BYTES = 1 << 20  # a hundred times the longest in configs/
DEPTH = 16  # of tables and arrays in each other; gcprof's own have four


def load(path: Path, *, hint: str) -> tuple[str, dict[str, Any]]:
    """The file's text and what it says. Raises UserError, with the hint where it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", hint=hint) from None
    if len(text) > FILE_BYTES:
        raise UserError(f"'{path}' is larger than {FILE_BYTES >> 20} MiB", hint=hint)
    try:
        words = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8") from None
    try:
        found = tomllib.loads(words)
        _check(found)
    except RecursionError:
        raise _refused(path, f"it is nested deeper than {DEPTH} levels") from None
    except tomllib.TOMLDecodeError as error:
        what, _, at = str(error).partition(" (at line ")
        raise _refused(path, what, line=at.partition(",")[0] or words.count("\n") + 1) from None
    except ValueError as error:  # a number of too many digits is one too
        raise _refused(path, str(error)) from None
    return words, found


def _check(found: dict[str, Any]) -> None:
    """Raises RecursionError for what is nested too deep, and ValueError for a number that is too large."""
    for level in levels(found, most=DEPTH):
        if any(isinstance(one, int | float) and not abs(one) < LARGEST for one in level):
            raise ValueError("a number is out of range")


def _refused(path: Path, why: str, *, line: str | int = 1) -> UserError:
    return UserError(f"{path}:{line}: this is not TOML: {why}", hint="key = value, one a line")
