"""Finds what is the same, what differs, and what must not differ between the sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from profiler.analysis.pairing import ALLOWED, BUILT, MEANING, Side, value
from profiler.analysis.rows import Row
from profiler.core.case import SETTINGS, Choice
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.core.units import bytes_text

UNTOLD = ("started",)  # always differs, which means nothing
NOTHING = "-"
WORDS = {"device_name": "device", "device_bytes": "memory", "device_uuid": "UUID", "num_threads": "threads"}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One circumstance (a setting, or a part of the environment), by side."""

    what: str
    values: tuple[str, ...]

    @property
    def is_one(self) -> bool:
        return len(set(self.values)) == 1


def circumstances(sides: Sequence[Side]) -> tuple[Difference, ...]:
    """Return the circumstances of every side: all fields of the environment, the settings of its cases, the rounds.

    Several values on a side, such as two precisions, are joined in one text.
    """
    readers: dict[str, Callable[[Row], str]] = {"how": lambda row: row.evidence, "rehearsed on": _sized_gpu}
    readers |= {
        name: partial(_of_environment, name=name) for name in Environment.__struct_fields__ if name not in UNTOLD
    }
    settings = (name for name in (*MEANING, "verify", "warmup", "samples") if name not in ("model", "strategy"))
    readers |= {name: partial(value, name=name) for name in settings}
    differences = [
        Difference(what=WORDS.get(name, name.replace("_", " ")), values=tuple(_values(side, read) for side in sides))
        for name, read in readers.items()
    ]
    differences = [difference for difference in differences if not _is_as_ever(difference)]
    rounds = tuple(str(max((len(row.rounds) for row in side.rows), default=0)) for side in sides)
    return *differences, Difference(what="rounds", values=rounds)


def _is_as_ever(difference: Difference) -> bool:
    """Whether a setting has its default choice on every side."""
    choices = SETTINGS[difference.what].choices if difference.what in SETTINGS else ()
    return set(difference.values) <= set(choices[:1])


def refuse_mixed(sides: Sequence[Side], *, align: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise UserError (exit code 4) if rows that are compared differ in a setting that is not allowed to differ.

    Also if a side has no row in common with the baseline.
    """
    baseline, *others = sides
    for side in others:
        shared = [key for key in baseline.points if key in side.points]
        if not shared:
            raise _nothing_shared(baseline, side, align)
        implied = (BUILT,) if "model" in allowed else ()
        names = [name for name in ALLOWED if name not in (*align, *allowed, *implied)]
        wrong = {name: pair for name in names if (pair := _unequal(baseline, side, shared, name))}
        if wrong:
            sentences = (_told(baseline, side, name, *pair) for name, pair in wrong.items())
            raise UserError("; ".join(sentences), hint=_allowing(wrong), exit_code=4)


def idle(sides: Sequence[Side], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return a remark on settings that are allowed to differ and do not, in any rows that are compared."""
    baseline, *others = sides
    shared = {side.label: [key for key in baseline.points if key in side.points] for side in others}
    names = [name for name in allowed if not any(_unequal(baseline, side, shared[side.label], name) for side in others)]
    return (f"--allow-different {','.join(names)} has no effect: it does not differ",) if names else ()


def _unequal(baseline: Side, side: Side, shared: Sequence[tuple[str, ...]], name: str) -> tuple[str, str] | None:
    pairs = ((value(baseline.points[key].row, name), value(side.points[key].row, name)) for key in shared)
    return next(((first, second) for first, second in pairs if first and second and first != second), None)


def _nothing_shared(baseline: Side, side: Side, align: Sequence[str]) -> UserError:
    sentences, apart = [f"no row of {_named(side)} is in {_named(baseline)}"], []
    for name in align:
        first, second = (
            list(dict.fromkeys(value(row, name) for row in compared.rows)) for compared in (baseline, side)
        )
        if not set(first) & set(second):
            apart.append(name)
            sentences.append(_told(baseline, side, name, " or ".join(first), " or ".join(second)))
    hint = _allowing(apart) if apart else "`gcprof show` lists the rows of each"
    return UserError("; ".join(sentences), hint=hint, exit_code=4)


def _told(baseline: Side, side: Side, name: str, first: str, second: str) -> str:
    return f"{name} is {first} in {_named(baseline)}, {second} in {_named(side)}"


def _allowing(names: Iterable[str]) -> str:
    return f"to compare them anyway: --allow-different {','.join(names)}"


def _named(side: Side) -> str:
    return f"{side.label} ({side.run})"


def _values(side: Side, read: Callable[[Row], str]) -> str:
    return ", ".join(dict.fromkeys(text for row in side.rows if (text := read(row)))) or NOTHING


def _sized_gpu(row: Row) -> str:
    """Return the device of a rehearsed GPU that was given sizes of its own; empty for any other."""
    return row.case.device if row.case.is_rehearsed and Choice(row.case.device).name != row.case.device else ""


def _of_environment(row: Row, name: str) -> str:
    field = getattr(row.environment, name) if row.environment else None
    return "" if field is None else bytes_text(field) if name.endswith("_bytes") else str(field)
