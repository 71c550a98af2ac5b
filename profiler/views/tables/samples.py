"""The details behind a row as text: every raw time sample, and the memory of each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from profiler.analysis.rows import Row
from profiler.core.plan_file import strategy_label
from profiler.core.record import RankBytes
from profiler.core.stats import spread, uncertainty
from profiler.core.units import count_text, scaled, second_unit, spread_text
from profiler.views.tables.columns import groups, heading, reasons
from profiler.views.tables.grid import Table, byte_columns, numbers, telling, words

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


def _sampling(row: Row) -> str:
    """Return how certain the median is, and how many warm-up steps and samples each round had and why it ended."""
    reached = uncertainty(samples_of(row, "step"))
    sure = "too few samples to be sure of the median"
    parts = [sure if reached is None else f"the median is known to {spread_text(reached)}"]
    for record in row.rounds:
        if not record.readings.step_seconds:
            continue
        readings = record.readings
        facts = [f"round {record.round}: {count_text(len(readings.step_seconds or ()), 'sample')}"]
        if readings.stopped is not None:
            is_asked = not record.case.sampling and readings.stopped != "limit"
            facts.append("as asked" if is_asked else STOPPED[readings.stopped])
        warmup, plain = len(readings.warmup_seconds or ()), len(readings.plain_warmup_seconds or ())
        num_added = plain - 1 if plain else warmup - 1 - record.case.warmup
        if warmup:
            facts.append(f"{warmup} of warm-up" + (f", {num_added} of them found" if num_added > 0 else ""))
        parts.append(", ".join(facts))
    return "; ".join(parts)


def _group(rows: Sequence[Row]) -> list[Table]:
    size, unit = second_unit(second for row in rows for name in TIMES for second in samples_of(row, name))
    all_times = [{name: found for name in ("warmup", *TIMES) if (found := samples_of(row, name))} for row in rows]
    tables = [Table(title=f"{heading(rows)}, samples in {unit}" if any(all_times) else heading(rows))]
    why = "a rehearsal has no times" if rows[0].evidence == "rehearsed" else "time not measured"
    below = reasons(rows)
    for row, times in zip(rows, all_times, strict=True):
        texts = [" ".join(scaled(second, size) for second in seconds) for seconds in times.values()]
        columns = (
            words("part", "", ["warm-up" if name == "warmup" else name for name in times]),
            numbers("spread", "", ["" if name == "warmup" else spread_text(spread(times[name])) for name in times]),
            words("samples, the rounds in order", "", texts),
        )
        sampled = (_sampling(row),) if "step" in times else ()
        if times:
            tables.append(Table(title=strategy_label(row.case.strategy), columns=columns, below=sampled))
        elif row.outcome == "ok":
            below.append(f"{strategy_label(row.case.strategy)}: {why}")
    return [*tables, Table(below=tuple(below))]


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
    counts: dict[str, list[int | None]] = {
        "peak": [rank.peak_bytes for rank in held],
        "saved": [rank.saved_bytes for rank in held],
        "static": [sum(rank.static_bytes.values()) for rank in held],
        **{name: [rank.static_bytes.get(name) for rank in held] for name in categories},
        "gathered at most": [rank.gathered_bytes for rank in held],
    }
    columns = (words("strategy", "", names), numbers("rank", "", ranges), *byte_columns(counts))
    return [Table(title="each rank, and what is static of it:", columns=telling(columns))]
