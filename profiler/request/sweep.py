"""Sweep files: TOML with exactly the keys of a Request. Knows nothing of what the words mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError, nearest
from profiler.request.spec import Request

NUMBERS = ("accumulate", "batch_size", "ranks", "segments")  # words that may be one number


def read(path: Path) -> Request:
    """Read a sweep file. Raises UserError with file, line and key if it is not TOML, or a key or type is wrong."""
    text, table = safe_files.load_toml(path, hint="examples are in configs/")
    return as_request(table, path=path, text=text)


def as_request(table: dict[str, Any], *, path: Path, text: str) -> Request:
    """Convert a table of TOML to a Request; file and text are for error messages."""
    allowed = list(Request.__struct_fields__)
    for key in table:
        if key not in allowed:
            hint = " ".join(filter(None, [nearest(key, allowed), f"the keys are {', '.join(allowed)}"]))
            raise UserError(f"{path}:{safe_files.line_of(text, key)}: no key is called '{key}'", hint=hint)
    for key, value in table.items():
        if wrong := _fault(value):
            message = f"{path}:{safe_files.line_of(text, key)}: {key}: {wrong}"
            raise UserError(message, hint="a list is of whole numbers or of words: [1, 2], ['all', 'sqrt']")
    try:
        return msgspec.convert({key: _as_words(key, value) for key, value in table.items()}, Request)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("$.")[2].rstrip("`")
        message = f"{path}:{safe_files.line_of(text, key)}: {key}: {str(error).partition(' - at')[0]}"
        raise UserError(message, hint="examples are in configs/") from None


def _fault(value: object) -> str | None:
    """Return why a list is not one of words and whole numbers; None if it is, or if the value is no list."""
    if not isinstance(value, list):
        return None
    wrong = [item for item in value if type(item) not in (str, int)]
    if wrong:
        return f"{msgspec.json.encode(wrong[0], enc_hook=str).decode()} is neither a whole number nor a word"
    return None if value else "the list is empty"


def _as_words(key: str, value: object) -> object:
    """Convert a value to its command-line form: [1, 2] to `1,2`, and 64 to `64` if a word is expected."""
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and key in NUMBERS:
        return str(value)
    return value
