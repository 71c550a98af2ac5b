"""JSON files that anyone may have written: strict, finite, of bounded lines and nesting. Knows not what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from profiler.core.limits import LARGEST, levels

LINE_BYTES = 32 << 20  # a record of 100,000 samples of each kind and of 10,000 parameters takes half of it
FILE_BYTES = 256 << 20  # a document; the manifest of 100,000 trials takes a quarter of it
PIECE_BYTES = 1 << 20
DEPTH = 64  # records have six levels; what goes deepest are the segments within segments of a plan


class Malformed(msgspec.DecodeError):
    """It is JSON that this reader does not take, or none."""


def read(path: Path) -> bytes:
    """A whole document. Raises OSError, and Malformed for one that is larger than any that gcprof writes."""
    text = bytearray()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            text += piece
            if len(text) > FILE_BYTES:
                raise Malformed(f"it is larger than {FILE_BYTES >> 20} MiB")
    return bytes(text)


def lines(path: Path) -> Iterator[bytes]:
    """Each line with its end, which the last one may lack; never more of the file at once than one line.

    A line that is too long is cut, to one byte more than `check` takes. Raises OSError.
    """
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES + 1):
            yield line
            if len(line) > LINE_BYTES:
                _skip(file, line)


def check_length(line: bytes) -> None:
    """Raises Malformed for a line that is longer than any that gcprof writes."""
    if len(line) > LINE_BYTES:
        raise Malformed(f"the line is longer than {LINE_BYTES >> 20} MiB")


def check(text: bytes) -> None:
    """Raises Malformed for a key that is there twice, a number out of range, deep nesting, and what is no JSON."""
    try:
        found = json.loads(
            text.decode(), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
        for _ in levels(found, most=DEPTH):
            continue
    except RecursionError:
        raise Malformed(f"it is nested deeper than {DEPTH} levels") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def _skip(file: BinaryIO, line: bytes) -> None:
    """Go on to the next line."""
    while line and not line.endswith(b"\n"):
        line = file.readline(LINE_BYTES)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Malformed(f"the key '{next(key for key in found if keys.count(key) > 1)}' is there twice")
    return found


def _refuse(word: str) -> float:
    raise Malformed(f"{word} is no number of JSON")


def _finite(word: str) -> float:
    number = float(word)
    if number - number != 0:  # infinite: of JSON's own numbers none is NaN
        raise Malformed(f"the number {_brief(word)} is out of range")
    return number


def _whole(word: str) -> int:
    if len(word) > 20 or not -LARGEST <= int(word) < LARGEST:
        raise Malformed(f"the number {_brief(word)} is out of range")
    return int(word)


def _brief(word: str) -> str:
    return word if len(word) <= 20 else f"{word[:12]}... of {len(word):,} characters"
