"""Reads JSON and TOML files that anyone may have written: within one limit of size, as plain data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError
from profiler.core.safe_files import MOST_BYTES

TOML_BYTES = 1 << 20  # a hundred times the longest in configs/


class Malformed(msgspec.DecodeError):
    """The text is larger than any that gcprof writes."""


class _Schema(msgspec.Struct):
    schema: int


def read_json(path: Path) -> bytes:
    """Return a whole document as bytes. Raises OSError, also for a file that is not regular or too large."""
    with safe_files.opened(path, most_bytes=MOST_BYTES) as file:
        return file.read()


def json_lines(path: Path) -> Iterator[bytes]:
    """Yield each line with its line end, which the last one may lack. Raises OSError, and Malformed for a long line."""
    with safe_files.opened(path) as file:
        while line := file.readline(MOST_BYTES + 1):
            if len(line) > MOST_BYTES:
                raise Malformed(f"the line is longer than {MOST_BYTES >> 20} MiB")
            yield line


def written_schema(text: bytes) -> int:
    """Return the schema that a line or a document states. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=_Schema).schema


def load_toml(path: Path, *, hint: str) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its parsed content. Raises UserError, with `hint` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(TOML_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", hint=hint) from None
    if len(text) > TOML_BYTES:
        raise UserError(f"'{path}' is larger than {TOML_BYTES >> 10} KiB", hint=hint)
    try:
        words = text.decode("utf-8-sig")
        return words, tomllib.loads(words)
    except UnicodeDecodeError as error:
        line: str | int = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        message, _, at = str(error).partition(" (at line ")
        line = at.partition(",")[0] or words.count("\n") + 1
        raise UserError(f"{path}:{line}: this is not TOML: {message}", hint="key = value, one a line") from None


def line_of(text: str, key: str) -> int:
    """Return the number of the first line of a TOML file that sets a key; 1 if none does."""
    pattern = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]|^\s*\[+\s*{re.escape(key)}\b""")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)
