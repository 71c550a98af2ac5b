"""Behind the rows of a table: every raw time sample, the memory of each rank, and numbers over two axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from profiler.analysis.advice import device_memory, holds, samples_per_second, throughput_frontier
from profiler.analysis.axes import Axis, Value, grid, nearest_growth, two
from profiler.analysis.rows import Row
from profiler.core.plan_file import strategy_label
from profiler.core.record import RankBytes
from profiler.core.stats import spread, uncertainty
from profiler.core.units import (
    MISSING,
    byte_unit,
    bytes_text,
    bytes_texts,
    count_text,
    in_unit_text,
    scaled,
    second_unit,
    spread_text,
)
from profiler.views.plots.panels import planes, space_of
from profiler.views.tables.columns import COUNTED, groups, heading, reasons
from profiler.views.tables.evidence import marked, value_words
from profiler.views.tables.grid import Table, byte_columns, numbers, telling, words

OUT, BEYOND = "OOM", "*"
BATCHES = {"batch_size", "strategy"}  # the axes over which the throughput frontier is shown too
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


# ---- numbers over two axes


class ShownQuantity(NamedTuple):
    """A quantity that a table shows for every row that is ok, and its text."""

    title: str
    read: Callable[[Row], float | None]
    text: Callable[[float], str]
    unit: float = 1.0  # of the text
    is_peak: bool = False
    grows: bool = True  # whether its growth along the axis is shown


def over_axes(rows: Sequence[Row], *, over: Sequence[str] = ()) -> list[Table]:
    """Return tables of peak, step time and samples a second over two axes, for each value of the other axes.

    Raises UserError if no two settings vary, or if a named one does not.
    """
    return [table for plane in planes(rows, over) for table in _plane(plane)]


def _plane(rows: Sequence[Row]) -> Iterator[Table]:
    space = space_of(rows)
    across, up = two(space)
    cells = grid(rows, space, across, up)
    yield Table(title=heading(rows))
    for quantity in _quantities(rows):
        columns = [
            words(up.label, "", value_words(up, rows)),
            *(
                numbers(word, "", [_cell(cells.get((x, y)), quantity) for y in up.values])
                for x, word in zip(across.values, value_words(across, rows), strict=True)
            ),
        ]
        growths = [_growth([(x, cells.get((x, y))) for x in across.values], quantity) for y in up.values]
        if across.is_number and quantity.grows and any(growth != MISSING for growth in growths):
            columns.append(numbers("grows", "as", growths))
        title = f"{quantity.title} by {across.label}"
        yield Table(title=title, columns=tuple(columns), cuts=tuple(range(1, len(columns))))
    if {across.name, up.name} == BATCHES and (best := throughput_frontier(rows)):
        stairs = (
            numbers("from", "", bytes_texts([row.readings.peak_bytes for row in best])),
            words("strategy", "", [str(row.case.label) for row in best]),
            numbers("batch", "size", [str(row.case.batch_size) for row in best]),
            numbers("samples", "a second", [_rate_text(samples_per_second(row) or 0.0) for row in best]),
        )
        yield Table(title="the most samples a second up to a peak", columns=stairs)
    yield Table(below=tuple(_legend(rows, across)))


def _quantities(rows: Sequence[Row]) -> list[ShownQuantity]:
    """Return the quantities that at least one row has."""
    size, unit = byte_unit(row.readings.peak_bytes for row in rows)
    second, second_name = second_unit(row.step_seconds for row in rows)
    in_bytes, in_seconds = partial(scaled, size=size), partial(scaled, size=second)
    peak, saved = (f"{marked(name, rows)} ({unit})" for name in ("peak memory", "saved memory"))
    quantities = (
        ShownQuantity(peak, lambda row: row.readings.peak_bytes, in_bytes, size, is_peak=True),
        ShownQuantity(saved, lambda row: row.readings.saved_bytes, in_bytes, size),
        ShownQuantity(f"step time ({second_name})", lambda row: row.step_seconds, in_seconds, second),
        ShownQuantity("samples a second", samples_per_second, _rate_text, grows=False),
    )
    return [quantity for quantity in quantities if any(_value(row, quantity) is not None for row in rows)]


def _value(row: Row, quantity: ShownQuantity) -> float | None:
    return quantity.read(row) if row.outcome == "ok" else None


def _rate_text(rate: float) -> str:
    return in_unit_text(rate, "")


def _cell(row: Row | None, quantity: ShownQuantity) -> str:
    if row is None:
        return MISSING
    if row.outcome != "ok":
        return OUT if row.outcome == "out_of_memory" else row.outcome.replace("_", " ")
    value = _value(row, quantity)
    mark = BEYOND if quantity.is_peak and holds(row) is False else ""
    return MISSING if value is None else f"{mark}{quantity.text(value)}"


def _growth(along: Sequence[tuple[Value, Row | None]], quantity: ShownQuantity) -> str:
    points = [(float(size), _value(row, quantity)) for size, row in along if row and isinstance(size, int | float)]
    measured = [(size, value) for size, value in points if value is not None]
    growth = nearest_growth([size for size, _ in measured], [value for _, value in measured])
    return MISSING if growth is None else growth.text(quantity.unit)


def _legend(rows: Sequence[Row], across: Axis) -> list[str]:
    """Return lines that explain the signs in the cells."""
    device_bytes = device_memory(rows)
    memory = "the device's memory" if device_bytes is None else f"the device's {bytes_text(device_bytes)}"
    beyond = any(row.outcome == "ok" and holds(row) is False for row in rows)
    return [
        *([f"{BEYOND} does not fit {memory}, {COUNTED}"] if beyond else []),
        *([f"{OUT}: ran out of memory"] if any(row.outcome == "out_of_memory" for row in rows) else []),
        *([f"n: {across.label}"] if across.is_number and len(across.values) > 2 else []),
    ]
