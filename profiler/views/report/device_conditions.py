"""Where a run took place and what its notes say. Knows nothing of how that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.rows import Row
from profiler.core.record import Environment
from profiler.core.units import MISSING, bytes_text
from profiler.views.report.grids import Grid, Head, short
from profiler.views.sanitize import plain

NAMES = {
    "device_name": "device",
    "device_bytes": "memory of the device",
    "device_uuid": "number of the device",
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "python": "Python",
    "system": "system",
    "num_threads": "threads",
    "gcprof": "gcprof",
}
MOST = 4  # environments beside each other
NUM_NAMED = 6  # strategies that a note names
LONGEST = 600  # letters of a note


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One note, with the strategies that it concerns."""

    code: str
    text: str
    strategies: str


def environments(rows: Sequence[Row]) -> Grid | None:
    """A column for each environment that differs in more than its start, and a line for all that is known of one."""
    found = [row.environment for row in rows if row.environment]
    distinct = list(dict.fromkeys(map(_timeless, found)))[:MOST]
    if not distinct:
        return None
    lines = [(head, *(_value(one, name) for one in distinct)) for name, head in NAMES.items()]
    known = [line for line in lines if set(line[1:]) != {MISSING}]
    began = [min((one.started or "" for one in found if _timeless(one) == other), default="") for other in distinct]
    known.append(("first trial began (UTC)", *(short(one) or MISSING for one in began)))
    heads = ["what", *(["value"] if len(distinct) == 1 else [f"environment {at + 1}" for at in range(len(distinct))])]
    return Grid(caption="Environment", heads=tuple(Head(text=text) for text in heads), lines=tuple(known))


def remarks(rows: Sequence[Row]) -> tuple[Remark, ...]:
    """One remark for each text of each code, in the order of the codes."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in row.notes:
            found.setdefault((note.code, note.text), []).append(short(row.case.strategy))
    return tuple(
        Remark(code=plain(code), text=plain(text)[:LONGEST], strategies=_named(found[code, text]))
        for code, text in sorted(found)
    )


def _timeless(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, started=None)


def _value(environment: Environment, name: str) -> str:
    value = getattr(environment, name)
    return bytes_text(value) if name == "device_bytes" else MISSING if value is None else short(str(value))


def _named(strategies: Sequence[str]) -> str:
    more = len(strategies) - NUM_NAMED
    return ", ".join(strategies[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
