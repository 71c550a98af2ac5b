"""Reads the files of a run, as text and decoded: of any schema, never more than one line at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import astuple, force_setattr

from profiler.core import strict_files
from profiler.core.case import Trial, decode
from profiler.core.errors import UserError
from profiler.core.record import SCHEMA, Equality, Record

Document = dict[str, Any]
Kind = Literal["manifest", "record"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Converts a manifest and a record from one schema to the next one; `lifted` raises the number."""

    manifest: Callable[[Document], Document]
    record: Callable[[Document], Document]


STEPS: dict[int, Step] = {}  # by the schema that a step converts; schema 1 is the first and the present one


def lifted(text: bytes, kind: Kind) -> bytes:
    """Return a document in the newest schema that the steps lead to; the same bytes if none applies."""
    if strict_files.written_schema(text) not in STEPS:
        return text
    document = msgspec.json.decode(text)
    while (step := STEPS.get(document["schema"])) is not None:
        document = {**getattr(step, kind)(document), "schema": document["schema"] + 1}
    return msgspec.json.encode(document)


def whole(path: Path) -> bytes:
    """Return the text of a document. Raises UserError (exit code 4) if it cannot be read, or is too large."""
    try:
        return strict_files.read_json(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def numbered(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield location (`FOLDER/trials.jsonl:3`) and text of each line, none if there is no file. Raises as `whole`."""
    if not os.path.lexists(path):
        return
    number = 0
    try:
        for number, line in enumerate(strict_files.json_lines(path), start=1):
            yield f"{path}:{number}", line
    except OSError as error:
        raise _unreadable(path, error) from error
    except strict_files.Malformed as error:
        raise _damaged(f"{path}:{number + 1}", error) from error


def is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of a record, or zeros, which some file systems leave. Other ends are damage."""
    return not line.endswith(b"\n") and (line.startswith(b"{") or not line.strip(b"\0"))


def decoded(text: bytes, kind: type[Any], where: object) -> Any:
    """Decode a line or a document of any schema. Raises UserError (exit code 4) that begins with `where`."""
    try:
        schema = strict_files.written_schema(text)
        if schema > SCHEMA:
            message = f"{where}: written by a newer gcprof (schema {schema}, this one reads {SCHEMA})"
            raise UserError(message, hint="upgrade gcprof", exit_code=4)
        return decode(text if schema == SCHEMA else lifted(text, "record" if kind is Record else "manifest"), kind)
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


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read '{path}': {error.strerror}", hint="the other runs are fine", exit_code=4)


def _damaged(where: object, error: Exception) -> UserError:
    return UserError(f"{where}: {error}", hint="the file is damaged; the other runs are not", exit_code=4)
