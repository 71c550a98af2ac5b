"""JSON and TOML files that anyone may have written: strict, finite, of bounded size and nesting.

The bounds hold what one document or line takes of memory below MEMORY_BYTES, whatever is in it; a test measures that.
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

LARGEST = 2**63  # bytes, FLOPs, seconds: more than there is; whole numbers below it are of 64 bits
MEMORY_BYTES = 768 << 20  # that reading one document or line takes, Python and gcprof besides
LINE_BYTES = 32 << 20  # a record of 100,000 samples of each kind and of 10,000 parameters takes half of it
JSON_BYTES = 64 << 20  # a document; the manifest of 100,000 trials takes 55 MiB
JSON_VALUES = 3_200_000  # of either, counted by what stands before them; those 100,000 trials have 2.7 million
PIECE_BYTES = 1 << 20  # that the end of a file is looked through by
JSON_DEPTH = 64  # records have six levels; what goes deepest are the segments within segments of a plan
TOML_BYTES = 1 << 20  # a hundred times the longest in configs/
TOML_DEPTH = 8  # of tables and arrays in each other, and of the parts of a key; gcprof's own have four
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
LONG_KEY = re.compile(rf"""(?:^|[\[{{,])[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{TOML_DEPTH}}}""", re.MULTILINE)
_LEAF: list[Any] = []  # what stands for all that holds nothing deeper


def levels(document: Any, *, most: int) -> Iterator[list[Any]]:
    """What is in nested data, one list a level, the outermost first. Raises RecursionError beyond `most` levels."""
    level = [document]
    for _ in range(most):
        nested = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [inner for inside in nested for inner in inside]
        yield level
        if not level:
            return
    raise RecursionError


class Malformed(msgspec.DecodeError):
    """It is JSON that this reader does not take, or none."""


def read_json(path: Path) -> bytes:
    """A whole document of a run folder, or a plan.

    Raises OSError, also for what is no regular file, and Malformed for one that is larger than any that gcprof writes.
    """
    with safe_files.opened(path) as file:
        return read_document(file)


def read_document(file: BinaryIO) -> bytes:
    """The whole of an open file. Raises OSError and Malformed as `read_json` does."""
    with file:
        text = file.read(JSON_BYTES + 1)
    if len(text) > JSON_BYTES:
        raise Malformed(f"it is larger than {JSON_BYTES >> 20} MiB")
    _check_values(text)
    return text


def json_lines(path: Path) -> Iterator[bytes]:
    """Each line with its end, which the last one may lack; never more of the file at once than one line.

    A line that is too long is cut, to one byte more than `check_line` takes. Raises OSError.
    """
    with safe_files.opened(path) as file:
        while line := file.readline(LINE_BYTES + 1):
            yield line
            if len(line) > LINE_BYTES:
                _skip_line(file, line)


class _Schema(msgspec.Struct):
    schema: int


def written_schema(text: bytes) -> int:
    """The schema that a line or a document says that it is of. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=_Schema).schema


def check_line(line: bytes) -> None:
    """Raises Malformed for a line that holds more than any that gcprof writes."""
    if len(line) > LINE_BYTES:
        raise Malformed(f"the line is longer than {LINE_BYTES >> 20} MiB")
    _check_values(line)


def check_json(text: bytes) -> None:
    """Raises Malformed for a key that is there twice, a number out of range, deep nesting, and what is no JSON."""
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
    """Go on to the next line."""
    while line and not line.endswith(b"\n"):
        line = file.readline(LINE_BYTES)


def _object(pairs: list[tuple[str, Any]]) -> list[Any]:
    """What is nested in an object, whose rest is dropped: a document takes many times the memory of its text."""
    keys = sorted(key for key, _ in pairs)  # a set of as many takes five times the memory
    if any(map(eq, keys, keys[1:])):
        raise Malformed(f"the key '{next(key for key, after in pairwise(keys) if key == after)}' is there twice")
    return [value for _, value in pairs if isinstance(value, list)] or _LEAF


def _refuse(word: str) -> None:
    raise Malformed(f"{word} is no number of JSON")


def _finite(word: str) -> None:
    number = float(word)
    if number - number != 0:  # infinite: of JSON's own numbers none is NaN
        raise Malformed(f"the number {_brief(word)} is out of range")


def _whole(word: str) -> None:
    if len(word) > 20 or not -LARGEST <= int(word) < LARGEST:
        raise Malformed(f"the number {_brief(word)} is out of range")


def _brief(word: str) -> str:
    return word if len(word) <= 20 else f"{word[:12]}... of {len(word):,} characters"


def load_toml(path: Path, *, hint: str) -> tuple[str, dict[str, Any]]:
    """The file's text and what it says. Raises UserError, with the hint where it cannot be read."""
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
    if long_key:  # each part of a key is a table in a table, and takes a hundred times its text
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
    except ValueError as error:  # a number of too many digits is one too
        raise _not_toml(path, str(error)) from None
    return words, document


def line_of(text: str, key: str) -> int:
    """The number of the line of a TOML file that gives a key, the first where none does."""
    pattern = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]|^\s*\[+\s*{re.escape(key)}\b""")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)


def _check_toml(document: dict[str, Any]) -> None:
    """Raises RecursionError for what is nested too deep, and ValueError for a number that is too large."""
    for level in levels(document, most=TOML_DEPTH):
        if any(isinstance(value, int | float) and not abs(value) < LARGEST for value in level):
            raise ValueError("a number is out of range")


def _not_toml(path: Path, why: str, *, line: str | int = 1) -> UserError:
    return UserError(f"{path}:{line}: this is not TOML: {why}", hint="key = value, one a line")
