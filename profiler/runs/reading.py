"""Reads the files of a run, as text and decoded: strictly, of any schema, never more than one line at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import astuple, force_setattr

from profiler.core import safe_files, strict_files
from profiler.core.case import Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.record import SCHEMA, Equality, Record

Document = dict[str, Any]
Kind = Literal["manifest", "record"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Converts a manifest and a record from one schema to the next one; `lifted` raises the number."""

    manifest: Callable[[Document], Document]
    record: Callable[[Document], Document]


STEPS: dict[int, Step] = {}  # by the schema that a step converts; schema 1 is the first and the present one


def lifted(document: Document, kind: Kind) -> Document:
    """Convert a document to the newest schema that the steps lead to; return the same object if none applies."""
    while (step := STEPS.get(document["schema"])) is not None:
        document = {**getattr(step, kind)(document), "schema": document["schema"] + 1}
    return document


def whole(path: Path) -> bytes:
    """Return the text of a document. Raises UserError (exit code 4) if it cannot be read, or is too large."""
    try:
        return strict_files.read_json(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except strict_files.Malformed as error:
        raise _damaged(path, error) from error


def numbered(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield location (`FOLDER/trials.jsonl:3`) and text of each line, none if there is no file. Raises as `whole`."""
    if not os.path.lexists(path):
        return
    name = str(path)
    try:
        for number, line in enumerate(strict_files.json_lines(path), start=1):
            yield f"{name}:{number}", line
    except OSError as error:
        raise _unreadable(path, error) from error


def is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of a record, or zeros, which some file systems leave. Other ends are damage."""
    if line.endswith(b"\n") or len(line) > strict_files.LINE_BYTES:
        return False
    return line.startswith(b"{") or not line.strip(b"\0")


def unended(path: Path) -> bytes:
    """Return the end of a file after its last newline; of one too long for a line, only LINE_BYTES or a little more."""
    line = b""
    with safe_files.opened(path) as file:
        at = file.seek(0, os.SEEK_END)
        while at and len(line) <= strict_files.LINE_BYTES:
            before, at = at, max(0, at - strict_files.PIECE_BYTES)
            file.seek(at)
            _, newline, piece = file.read(before - at).rpartition(b"\n")
            line = piece + line
            if newline:
                break
    return line


def decoded(text: bytes, kind: type[Any], where: object) -> Any:
    """Decode a line or a document of any schema. Raises UserError (exit code 4) that begins with `where`."""
    try:
        if kind is Record:
            strict_files.check_line(text)
        document = _own(text, kind)
        return _foreign(text, kind, where) if document is None else document
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise _damaged(where, error) from error


_WORDS = {  # fields that are mostly the same from record to record
    "case": ("model", "optimizer", "device", "precision", "data", "verify"),
    "environment": ("gcprof", "python", "system", "torch", "cuda", "driver", "device_name", "device_uuid"),
}


class Shared:
    """Reads the records of a run; equal parts become one object, which halves the memory of a large run."""

    def __init__(self, plan: Iterable[Trial], *, without: Collection[str] = ()) -> None:
        self._without = without  # readings that are not kept
        self._known: dict[Hashable, Any] = {}  # the first object of each value, by field and value
        for trial in plan:
            self._share(trial, "case", "passes")

    def read(self, line: bytes, where: str) -> Record:
        """The record of a line of trials.jsonl. Raises UserError as `decoded` does."""
        record: Record = decoded(line, Record, where)
        for name in self._without:
            force_setattr(record.readings, name, None)
        self._share(record, "case", "built", "equality", "environment")
        self._share(record.readings, "static_bytes")
        return record

    def _share(self, struct: msgspec.Struct, *names: str) -> None:
        """Replace each of these fields by the first object that is equal to it."""
        for name in names:
            part = getattr(struct, name)
            key: Hashable = part
            if isinstance(part, Equality):
                if part.digests or not part.gradients_equal:  # each has its own numbers
                    continue
                key = astuple(part)[:-1]  # all of it but its digests, a dict, which cannot be a key
            elif isinstance(part, dict):
                key = tuple(part.items())
            known = self._known.setdefault((name, key), part)
            if known is not part:
                force_setattr(struct, name, known)
            elif part is not None and name in _WORDS:
                self._share(part, *_WORDS[name])


def _own(text: bytes, kind: type[Any]) -> Any | None:
    """Decode a document exactly as gcprof would write it, so that no key is double or hidden in it; None for others."""
    try:
        document = decode(text, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if document.schema == SCHEMA and _is_own(document, text) else None


def _foreign(text: bytes, kind: type[Any], where: object) -> Any:
    """Decode and check a document of any schema that others may have written. Raises as msgspec does, and UserError."""
    schema = strict_files.written_schema(text)
    if schema > SCHEMA:
        message = f"{where}: written by a newer gcprof (schema {schema}, this one reads {SCHEMA})"
        raise UserError(message, hint="upgrade gcprof", exit_code=4)
    document = decode(text if schema == SCHEMA else _lifted(text, kind), kind)
    strict_files.check_json(text)
    return document


def _is_own(document: Any, text: bytes) -> bool:
    """Whether gcprof would write the same text: then no key is double or hidden in it, and no check is needed."""
    own = encode(document)
    if own == text or isinstance(document, Record) or len(own) > len(text):
        return own == text
    return msgspec.json.format(own, indent=1) == text


def _lifted(text: bytes, kind: type[Any]) -> bytes:
    """Convert an old document to the present schema: old files always open."""
    return msgspec.json.encode(lifted(msgspec.json.decode(text), "record" if kind is Record else "manifest"))


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read '{path}': {error.strerror}", hint="the other runs are fine", exit_code=4)


def _damaged(where: object, error: Exception) -> UserError:
    return UserError(f"{where}: {error}", hint="the file is damaged; the other runs are not", exit_code=4)
