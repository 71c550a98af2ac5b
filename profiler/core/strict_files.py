"""Reads JSON and TOML files that anyone may have written: strictly, with bounds on size, nesting and numbers.

The bounds keep the memory for one document or line below MEMORY_BYTES, whatever is in it; a test measures that.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from operator import eq
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError

LARGEST = 2**63  # more bytes, FLOPs or seconds than occur; whole numbers below it fit 64 bits
MEMORY_BYTES = 768 << 20  # for reading one document or line, in addition to Python and gcprof
LINE_BYTES = 32 << 20  # a record of 100,000 samples of each kind and of 10,000 parameters takes half of it
JSON_BYTES = 64 << 20  # a document; the manifest of 100,000 trials takes 55 MiB
JSON_VALUES = 3_200_000  # per line or document, counted by `,`, `[` and `{`; those 100,000 trials have 2.7 million
PIECE_BYTES = 1 << 20  # size of the pieces in which the end of a file is searched
JSON_DEPTH = 64  # records have six levels; the nested segments of a plan go deepest
TOML_BYTES = 1 << 20  # a hundred times the longest in configs/
TOML_DEPTH = 8  # of nested tables and arrays, and of the parts of a key; gcprof's own files have four
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
LONG_KEY = re.compile(rf"""(?:^|[\[{{,])[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{TOML_DEPTH}}}""", re.MULTILINE)
_LEAF: list[Any] = []  # stands for every object without nested lists or objects


def levels(document: Any, *, most: int) -> Iterator[list[Any]]:
    """Yield the values in nested data, a list per level, outermost first. Raises RecursionError above `most` levels."""
    level = [document]
    for _ in range(most):
        nested = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [inner for inside in nested for inner in inside]
        yield level
        if not level:
            return
    raise RecursionError


class Malformed(msgspec.DecodeError):
    """The text is not JSON, or JSON that this reader refuses."""


def read_json(path: Path) -> bytes:
    """Return a whole document of a run folder, or a plan, as bytes.

    Raises OSError, also if it is not a regular file, and Malformed if it is larger than any that gcprof writes.
    """
    with safe_files.opened(path) as file:
        return read_document(file)


def read_document(file: BinaryIO) -> bytes:
    """Return the whole of an open file, and close it. Raises OSError and Malformed as `read_json` does."""
    with file:
        text = file.read(JSON_BYTES + 1)
    if len(text) > JSON_BYTES:
        raise Malformed(f"it is larger than {JSON_BYTES >> 20} MiB")
    _check_values(text)
    return text


def json_lines(path: Path) -> Iterator[bytes]:
    """Yield each line with its line end, which the last one may lack; never holds more of the file than one line.

    A line that is too long is cut to one byte more than `check_line` takes. Raises OSError.
    """
    with safe_files.opened(path) as file:
        while line := file.readline(LINE_BYTES + 1):
            yield line
            if len(line) > LINE_BYTES:
                _skip_line(file, line)


class _Schema(msgspec.Struct):
    schema: int


def written_schema(text: bytes) -> int:
    """Return the schema that a line or a document states. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=_Schema).schema


def check_line(line: bytes) -> None:
    """Raise Malformed if a line holds more than any that gcprof writes."""
    if len(line) > LINE_BYTES:
        raise Malformed(f"the line is longer than {LINE_BYTES >> 20} MiB")
    _check_values(line)


def check_json(text: bytes) -> None:
    """Raise Malformed for a duplicate key, a number out of range, deep nesting, or text that is not JSON."""
    try:
        nested = json.loads(
            text.decode(), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
        for _ in levels(nested, most=JSON_DEPTH):
            continue
    except RecursionError:
        raise Malformed(f"it is nested deeper than {JSON_DEPTH} levels") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def _check_values(text: bytes) -> None:
    if len(text) > JSON_VALUES < text.count(b",") + text.count(b"[") + text.count(b"{") > JSON_VALUES:
        raise Malformed(f"it has more than {JSON_VALUES:,} values")


def _skip_line(file: BinaryIO, line: bytes) -> None:
    """Read up to the next line."""
    while line and not line.endswith(b"\n"):
        line = file.readline(LINE_BYTES)


def _object(pairs: list[tuple[str, Any]]) -> list[Any]:
    """Return only what is nested in an object, since a document takes many times the memory of its text."""
    keys = sorted(key for key, _ in pairs)  # a set of them takes five times the memory
    if any(map(eq, keys, keys[1:])):
        raise Malformed(f"the key '{next(key for key, after in pairwise(keys) if key == after)}' is there twice")
    return [value for _, value in pairs if isinstance(value, list)] or _LEAF


def _refuse(word: str) -> None:
    raise Malformed(f"{word} is not a JSON number")


def _finite(word: str) -> None:
    number = float(word)
    if number - number != 0:  # it is infinite, since no JSON number is NaN
        raise Malformed(f"the number {_brief(word)} is out of range")


def _whole(word: str) -> None:
    if len(word) > 20 or not -LARGEST <= int(word) < LARGEST:
        raise Malformed(f"the number {_brief(word)} is out of range")


def _brief(word: str) -> str:
    return word if len(word) <= 20 else f"{word[:12]}... of {len(word):,} characters"


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
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8") from None
    long_key = LONG_KEY.search(words)
    if long_key:  # each part of a key is a nested table, which takes a hundred times the memory of its text
        line = words.count("\n", 0, long_key.start()) + 1
        raise _not_toml(path, f"it is nested deeper than {TOML_DEPTH} levels", line=line)
    try:
        document = tomllib.loads(words)
        _check_toml(document)
    except RecursionError:
        raise _not_toml(path, f"it is nested deeper than {TOML_DEPTH} levels") from None
    except tomllib.TOMLDecodeError as error:
        message, _, at = str(error).partition(" (at line ")
        raise _not_toml(path, message, line=at.partition(",")[0] or words.count("\n") + 1) from None
    except ValueError as error:  # also raised for a number of too many digits
        raise _not_toml(path, str(error)) from None
    return words, document


def line_of(text: str, key: str) -> int:
    """Return the number of the first line of a TOML file that sets a key; 1 if none does."""
    pattern = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]|^\s*\[+\s*{re.escape(key)}\b""")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)


def _check_toml(document: dict[str, Any]) -> None:
    """Raise RecursionError if the document is nested too deeply, and ValueError if a number is too large."""
    for level in levels(document, most=TOML_DEPTH):
        if any(isinstance(value, int | float) and not abs(value) < LARGEST for value in level):
            raise ValueError("a number is out of range")


def _not_toml(path: Path, why: str, *, line: str | int = 1) -> UserError:
    return UserError(f"{path}:{line}: this is not TOML: {why}", hint="key = value, one a line")
