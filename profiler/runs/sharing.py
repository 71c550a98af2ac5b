"""What many records of a run say alike, kept once: half of what a large run takes of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Any

import msgspec

from profiler.core.case import Case, Trial
from profiler.core.record import Environment, Equality, Record

_OF_CASE = ("model", "optimizer", "device", "precision", "data", "verify")
_OF_ENVIRONMENT = ("gcprof", "python", "system", "torch", "cuda", "driver", "device_name", "device_uuid")
_TEXTS = {names: attrgetter(*names) for names in (_OF_CASE, _OF_ENVIRONMENT)}


class Shared:
    """Replaces parts of what was decoded, and nobody else has yet, by equal ones of the same field."""

    def __init__(self, plan: Iterable[Trial]) -> None:
        self._known: defaultdict[Hashable, dict[Hashable, Any]] = defaultdict(dict)  # by field, or by several fields
        self._cases: dict[Case, Case] = {}
        for trial in plan:
            self._case(trial)
            self._share(trial, "passes", trial.passes)

    def record(self, record: Record) -> None:
        """Make its case that of the plan, and what it ran on and built those of the records before."""
        self._case(record)
        readings, equality, environment = record.readings, record.equality, record.environment
        if environment is not None and environment not in self._known["environment"]:
            self._texts(environment, _OF_ENVIRONMENT)
        if equality is not None and equality.gradients_equal and not equality.digests:  # else each has its own numbers
            self._share(record, "equality", _scalars(equality))
        if readings.static_bytes is not None:
            self._share(readings, "static_bytes", tuple(readings.static_bytes.items()))
        self._share(record, "environment", environment)
        self._share(record, "built", record.built)

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


def _scalars(equality: Equality) -> Hashable:
    """All of it but its digests."""
    return msgspec.structs.astuple(equality)[:-1]
