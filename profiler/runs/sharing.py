"""What many records of a run say alike, read once and kept once: half of what a large run takes of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Any

import msgspec

from profiler.core import strict_files
from profiler.core.case import Case, Trial, decode, encode
from profiler.core.record import SCHEMA, Environment, Equality, Record
from profiler.runs import reading

_OF_CASE = ("model", "optimizer", "device", "precision", "data", "verify")
_OF_ENVIRONMENT = ("gcprof", "python", "system", "torch", "cuda", "driver", "device_name", "device_uuid")
_TEXTS = {names: attrgetter(*names) for names in (_OF_CASE, _OF_ENVIRONMENT)}
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(Record)}
_PARTS = ("built", "equality", "environment")  # that a record mostly has as the one before it has them
_Line = msgspec.defstruct(
    "_Line",
    [(name, msgspec.Raw if name in _PARTS else kind) for name, kind in _FIELDS.items()],
    kw_only=True,
    gc=False,
)


class Shared:
    """The records of a run, with parts that are equal replaced by one object: cases by those of the plan."""

    def __init__(self, plan: Iterable[Trial]) -> None:
        self._known: defaultdict[Hashable, dict[Hashable, Any]] = defaultdict(dict)  # by field, or by several fields
        self._cases: dict[Case, Case] = {}
        self._last: dict[str, tuple[bytes, Any]] = dict.fromkeys(_PARTS, (b"", None))  # text and part, by field
        for trial in plan:
            self._case(trial)
            self._share(trial, "passes", trial.passes)

    def read(self, line: bytes, where: str) -> Record:
        """The record of a line of trials.jsonl. Raises UserError as `reading.decoded` does, `where` first."""
        record = self._own(line)
        if record is None:
            record = reading.decoded(line, Record, where)
            for name in _PARTS:
                msgspec.structs.force_setattr(record, name, self._part(name, getattr(record, name)))
        self._case(record)
        if record.readings.static_bytes is not None:
            self._share(record.readings, "static_bytes", tuple(record.readings.static_bytes.items()))
        return record

    def _own(self, text: bytes) -> Record | None:
        """The record of a line that gcprof itself would write so, as `reading.decoded` tells it; else None.

        Parts that are those of the line before, to the byte, are not decoded again.
        """
        if len(text) > strict_files.JSON_VALUES:
            return None
        try:
            line = decode(text, _Line)
            if line.schema != SCHEMA or encode(line) != text:
                return None
            parts = {name: self._read_part(name, getattr(line, name)) for name in _PARTS}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return Record(
            schema=line.schema,
            case=line.case,
            round=line.round,
            outcome=line.outcome,
            detail=line.detail,
            shortage=line.shortage,
            readings=line.readings,
            notes=line.notes,
            stage_seconds=line.stage_seconds,
            num_steps=line.num_steps,
            **parts,
        )

    def _read_part(self, name: str, raw: msgspec.Raw) -> Any:
        """Raises msgspec.DecodeError for a part that gcprof would write otherwise."""
        text = bytes(raw)
        last_text, last = self._last[name]
        if text == last_text:
            return last
        part = decode(text, _FIELDS[name])
        if encode(part) != text:
            raise msgspec.DecodeError(name)
        part = self._part(name, part)
        self._last[name] = text, part
        return part

    def _part(self, name: str, part: Any) -> Any:
        """The part that is kept of all that are equal."""
        key: Hashable = part
        if isinstance(part, Equality):
            if part.digests or not part.gradients_equal:  # each has its own numbers
                return part
            key = msgspec.structs.astuple(part)[:-1]  # all of it but its digests
        elif isinstance(part, Environment) and part not in self._known[name]:
            self._texts(part, _OF_ENVIRONMENT)
        return self._known[name].setdefault(key, part)

    def _case(self, holder: Trial | Record) -> None:
        case = holder.case
        known = self._cases.get(case)
        if known is None:
            self._texts(case, _OF_CASE)
            self._cases[case] = case
        else:
            msgspec.structs.force_setattr(holder, "case", known)

    def _texts(self, struct: Case | Environment, names: tuple[str, ...]) -> None:
        """All of them at once where the same are known together, as nearly always."""
        texts = _TEXTS[names](struct)
        known = self._known[names].get(texts)
        if known is None:
            for name in names:
                self._share(struct, name, getattr(struct, name))
            known = self._known[names][texts] = _TEXTS[names](struct)
        for name, text in zip(names, known, strict=True):
            msgspec.structs.force_setattr(struct, name, text)

    def _share(self, struct: msgspec.Struct, name: str, key: Hashable) -> None:
        part = getattr(struct, name)
        known = self._known[name].setdefault(key, part)
        if known is not part:
            msgspec.structs.force_setattr(struct, name, known)
