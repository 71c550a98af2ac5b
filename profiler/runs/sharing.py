"""What many records of a run say alike, read once and kept once: half of what a large run takes of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from profiler.core import strict_files
from profiler.core.case import Case, Trial, decode, encode
from profiler.core.record import SCHEMA, Built, Environment, Equality, Record
from profiler.runs import reading

_OF_CASE = ("model", "optimizer", "device", "precision", "data", "verify")
_OF_ENVIRONMENT = ("gcprof", "python", "system", "torch", "cuda", "driver", "device_name", "device_uuid")
_TEXTS: dict[tuple[str, ...], Callable[[Any], tuple[str | None, ...]]] = {
    names: attrgetter(*names) for names in (_OF_CASE, _OF_ENVIRONMENT)
}
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(Record)}


class _Texts(NamedTuple):
    """What a record mostly has as the one before it, as it is written."""

    built: bytes
    equality: bytes
    environment: bytes


class _Parts(NamedTuple):
    """What `_Texts` say."""

    built: Built | None
    equality: Equality | None
    environment: Environment | None


_Line = msgspec.defstruct(
    "_Line",
    [(name, msgspec.Raw if name in ("case", *_Parts._fields) else kind) for name, kind in _FIELDS.items()],
    kw_only=True,
    gc=False,
)


class Shared:
    """The records of a run, with parts that are equal replaced by one object: cases by those of the plan."""

    def __init__(self, plan: Iterable[Trial], *, without: Collection[str] = ()) -> None:
        self._without = without  # readings that are not kept
        self._known: defaultdict[Hashable, dict[Hashable, Any]] = defaultdict(dict)  # by field, or by several fields
        self._cases: list[Case] = []  # each once, in the order of the plan
        self._places: dict[Case, int] = {}  # of the cases in their list
        self._next = 0  # the place of the case that comes next, where records are in the order of the plan
        self._last = _Texts(b"", b"", b""), _Parts(None, None, None)  # of the record before
        for trial in plan:
            force_setattr(trial, "case", self._case(trial.case))
            self._share(trial, "passes", trial.passes)
        self._next = 0

    def read(self, line: bytes, where: str) -> Record:
        """The record of a line of trials.jsonl. Raises UserError as `reading.decoded` does, `where` first."""
        record = self._own(line)
        if record is None:
            record = reading.decoded(line, Record, where)
            parts = self._kept(_Parts(record.built, record.equality, record.environment))
            record = msgspec.structs.replace(record, case=self._case(record.case), **parts._asdict())
        readings = record.readings
        for name in self._without:
            force_setattr(readings, name, None)
        if readings.static_bytes is not None:
            self._share(readings, "static_bytes", tuple(readings.static_bytes.items()))
        return record

    def _own(self, text: bytes) -> Record | None:
        """The record of a line that gcprof itself would write so, as `reading.decoded` tells it; else None.

        What is that of the line before, or the next case of the plan, to the byte, is not decoded again.
        """
        if len(text) > strict_files.JSON_VALUES:
            return None
        try:
            line = decode(text, _Line)
            if line.schema != SCHEMA or encode(line) != text:
                return None
            case = self._read_case(bytes(line.case))
            parts = self._read_parts(_Texts(bytes(line.built), bytes(line.equality), bytes(line.environment)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return Record(
            schema=line.schema,
            case=case,
            round=line.round,
            outcome=line.outcome,
            detail=line.detail,
            shortage=line.shortage,
            built=parts.built,
            readings=line.readings,
            equality=parts.equality,
            environment=parts.environment,
            notes=line.notes,
            stage_seconds=line.stage_seconds,
            num_steps=line.num_steps,
        )

    def _read_case(self, text: bytes) -> Case:
        """Raises msgspec.DecodeError for a case that gcprof would write otherwise."""
        if self._next < len(self._cases):
            case = self._cases[self._next]
            if encode(case) == text:
                self._next += 1
                return case
        return self._case(_own_part(text, "case"))

    def _read_parts(self, texts: _Texts) -> _Parts:
        """Raises msgspec.DecodeError for a part that gcprof would write otherwise."""
        if texts != self._last[0]:
            decoded = (_own_part(text, name) for name, text in zip(_Texts._fields, texts, strict=True))
            self._last = texts, self._kept(_Parts(*decoded))
        return self._last[1]

    def _kept(self, parts: _Parts) -> _Parts:
        """Of all parts that are equal the first."""
        return _Parts(*(self._part(name, part) for name, part in zip(_Parts._fields, parts, strict=True)))

    def _part(self, name: str, part: Any) -> Any:
        key: Hashable = part
        if isinstance(part, Equality):
            if part.digests or not part.gradients_equal:  # each has its own numbers
                return part
            key = msgspec.structs.astuple(part)[:-1]  # all of it but its digests
        elif isinstance(part, Environment) and part not in self._known[name]:
            self._texts(part, _OF_ENVIRONMENT)
        return self._known[name].setdefault(key, part)

    def _case(self, case: Case) -> Case:
        alike = self._alike(case)
        place = self._places.setdefault(alike, len(self._cases))
        if place == len(self._cases):
            self._cases.append(alike)
        self._next = place + 1
        return self._cases[place]

    def _alike(self, case: Case) -> Case:
        """The case with all but its strategy of the case before, where that is equal, as nearly always."""
        if self._cases:
            alike = msgspec.structs.replace(self._cases[-1], strategy=case.strategy)
            if alike == case:
                return alike
        self._texts(case, _OF_CASE)
        return case

    def _texts(self, struct: Case | Environment, names: tuple[str, ...]) -> None:
        """All of them at once where the same are known together, as nearly always."""
        texts = _TEXTS[names](struct)
        known = self._known[names].get(texts)
        if known is None:
            for name in names:
                self._share(struct, name, getattr(struct, name))
            known = self._known[names][texts] = _TEXTS[names](struct)
        for name, text in zip(names, known, strict=True):
            force_setattr(struct, name, text)

    def _share(self, struct: msgspec.Struct, name: str, key: Hashable) -> None:
        part = getattr(struct, name)
        known = self._known[name].setdefault(key, part)
        if known is not part:
            force_setattr(struct, name, known)


def _own_part(text: bytes, name: str) -> Any:
    """A field of a record. Raises msgspec.DecodeError for one that gcprof would write otherwise."""
    part = decode(text, _FIELDS[name])
    if encode(part) != text:
        raise msgspec.DecodeError(name)
    return part
