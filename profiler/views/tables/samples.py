"""The details behind a row as text: every raw time sample, and the memory of each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from profiler.analysis.rows import Row
from profiler.core.plan_file import strategy_label
from profiler.core.record import RankBytes, Record
from profiler.core.stats import spread, uncertainty
from profiler.core.units import byte_unit, count_text, scaled, second_unit, spread_text
from profiler.views.tables.columns import groups, heading, reasons
from profiler.views.tables.grid import Column, Table, numbers, telling, words

TIMES = ("forward", "backward", "optimizer", "step")
STOPPED = {
    "target": "sure enough",
    "samples": "--max-samples reached",
    "seconds": "--max-seconds reached",
    "limit": "--stage-limit near",
    "look": "a first look",
}


def samples(rows: Sequence[Row]) -> list[Table]:
    """Return the samples of each row in the order of the rounds, with their spread and why sampling ended."""
    return [table for group in groups(rows) for table in _group(group)]


def samples_of(row: Row, name: str) -> tuple[float, ...]:
    """Return the samples of one part of the step, in seconds; empty if it was not measured."""
    seconds: tuple[float, ...] | None = getattr(row.readings, f"{name}_seconds")
    return seconds or ()


def sampling_text(row: Row) -> str:
    """Return how certain the median is, and how many warm-up steps and samples each round had and why it ended."""
    reached = uncertainty(samples_of(row, "step"))
    sure = (
        f"the median is known to {spread_text(reached)}"
        if reached is not None
        else "too few samples to be sure of the median"
    )
    return f"{sure}; " + "; ".join(_round(record) for record in row.rounds if record.readings.step_seconds)


def _round(record: Record) -> str:
    readings = record.readings
    warmup, plain = len(readings.warmup_seconds or ()), len(readings.plain_warmup_seconds or ())
    num_added = plain - 1 if plain else warmup - 1 - record.case.warmup
    settled = [f"{warmup} of warm-up" + (f", {num_added} of them found" if num_added > 0 else "")] if warmup else []
    is_asked = not record.case.sampling and readings.stopped != "limit"
    why = [] if readings.stopped is None else ["as asked" if is_asked else STOPPED[readings.stopped]]
    return ", ".join(
        [f"round {record.round}: {count_text(len(readings.step_seconds or ()), 'sample')}", *why, *settled]
    )


def _group(rows: Sequence[Row]) -> list[Table]:
    size, unit = second_unit(second for row in rows for name in TIMES for second in samples_of(row, name))
    names_of = {row.case: [name for name in ("warmup", *TIMES) if samples_of(row, name)] for row in rows}
    tables = [Table(title=f"{heading(rows)}, samples in {unit}" if any(names_of.values()) else heading(rows))]
    for row in rows:
        names = names_of[row.case]
        columns = (
            words("part", "", ["warm-up" if name == "warmup" else name for name in names]),
            numbers("spread", "", ["" if name == "warmup" else _spread(row, name) for name in names]),
            words("samples, the rounds in order", "", [_values(row, name, size) for name in names]),
        )
        sampled = (sampling_text(row),) if samples_of(row, "step") else ()
        if names:
            tables.append(Table(title=strategy_label(row.case.label), columns=columns, below=sampled))
    untimed = [
        strategy_label(row.case.label)
        for row in rows
        if row.outcome == "ok" and not any(samples_of(row, name) for name in TIMES)
    ]
    why = "a rehearsal has no times" if rows[0].evidence == "rehearsed" else "time not measured"
    below = (*reasons(rows), *(f"{name}: {why}" for name in untimed))
    return [*tables, *([Table(below=below)] if below else [])]


def _spread(row: Row, name: str) -> str:
    return spread_text(spread(samples_of(row, name)))


def _values(row: Row, name: str, size: float) -> str:
    return " ".join(scaled(value, size) for value in samples_of(row, name))


class _EqualRanks(NamedTuple):
    """Consecutive ranks with equal memory, numbered like `0-3`."""

    strategy: str
    numbers: str
    held: RankBytes


def ranks(rows: Sequence[Row]) -> list[Table]:
    """Return a line per rank, or per range of ranks with equal memory; nothing if every row is of one process."""
    lines = [line for row in rows for line in _equal_ranks(row)]
    if not lines:
        return []
    categories = list(dict.fromkeys(name for line in lines for name in line.held.static_bytes))
    size, unit = byte_unit(line.held.peak_bytes for line in lines)

    def in_unit(name: str, values: Sequence[int | None]) -> Column:
        return numbers(name, unit, [scaled(value, size) for value in values])

    columns = [
        words("strategy", "", [line.strategy for line in lines]),
        numbers("rank", "", [line.numbers for line in lines]),
        in_unit("peak", [line.held.peak_bytes for line in lines]),
        in_unit("saved", [line.held.saved_bytes for line in lines]),
        in_unit("static", [sum(line.held.static_bytes.values()) for line in lines]),
        *(in_unit(name, [line.held.static_bytes.get(name) for line in lines]) for name in categories),
        in_unit("gathered at most", [line.held.gathered_bytes for line in lines]),
    ]
    return [Table(title="each rank, and what is static of it:", columns=telling(columns))]


def _equal_ranks(row: Row) -> list[_EqualRanks]:
    if not row.readings.ranks:
        return []
    equal_ranks = []
    for held, several in groupby(enumerate(row.readings.ranks), key=lambda pair: pair[1]):
        first, *others = [number for number, _ in several]
        name = f"{first}-{others[-1]}" if others else str(first)
        equal_ranks.append(_EqualRanks(strategy=strategy_label(row.case.label), numbers=name, held=held))
    return equal_ranks
