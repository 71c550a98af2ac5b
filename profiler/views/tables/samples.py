"""The details behind a row as text: every raw time sample, and the memory of each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

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
    all_times = [{name: found for name in ("warmup", *TIMES) if (found := samples_of(row, name))} for row in rows]
    tables = [Table(title=f"{heading(rows)}, samples in {unit}" if any(all_times) else heading(rows))]
    for row, times in zip(rows, all_times, strict=True):
        columns = (
            words("part", "", ["warm-up" if name == "warmup" else name for name in times]),
            numbers("spread", "", ["" if name == "warmup" else spread_text(spread(times[name])) for name in times]),
            words("samples, the rounds in order", "", [_in_unit(seconds, size) for seconds in times.values()]),
        )
        sampled = (sampling_text(row),) if "step" in times else ()
        if times:
            tables.append(Table(title=strategy_label(row.case.strategy), columns=columns, below=sampled))
    untimed = [
        strategy_label(row.case.strategy)
        for row, times in zip(rows, all_times, strict=True)
        if row.outcome == "ok" and not times
    ]
    why = "a rehearsal has no times" if rows[0].evidence == "rehearsed" else "time not measured"
    below = (*reasons(rows), *(f"{name}: {why}" for name in untimed))
    return [*tables, *([Table(below=below)] if below else [])]


def _in_unit(seconds: Sequence[float], size: float) -> str:
    return " ".join(scaled(second, size) for second in seconds)


def ranks(rows: Sequence[Row]) -> list[Table]:
    """Return a line per rank, or per range of ranks with equal memory; nothing if every row is of one process."""
    names, ranges, held = [], [], list[RankBytes]()
    for row in rows:
        for nbytes, several in groupby(enumerate(row.readings.ranks or ()), key=lambda pair: pair[1]):
            first, *others = [number for number, _ in several]
            names.append(strategy_label(row.case.strategy))
            ranges.append(f"{first}-{others[-1]}" if others else str(first))
            held.append(nbytes)
    if not held:
        return []
    categories = list(dict.fromkeys(name for rank in held for name in rank.static_bytes))
    size, unit = byte_unit(rank.peak_bytes for rank in held)

    def in_unit(name: str, values: Sequence[int | None]) -> Column:
        return numbers(name, unit, [scaled(value, size) for value in values])

    columns = [
        words("strategy", "", names),
        numbers("rank", "", ranges),
        in_unit("peak", [rank.peak_bytes for rank in held]),
        in_unit("saved", [rank.saved_bytes for rank in held]),
        in_unit("static", [sum(rank.static_bytes.values()) for rank in held]),
        *(in_unit(name, [rank.static_bytes.get(name) for rank in held]) for name in categories),
        in_unit("gathered at most", [rank.gathered_bytes for rank in held]),
    ]
    return [Table(title="each rank, and what is static of it:", columns=telling(columns))]
