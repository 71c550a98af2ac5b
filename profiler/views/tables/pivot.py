"""Tables of a run's numbers over two of its axes, for a screen of any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from profiler.analysis.axes import Axis, Value, grid, nearest_growth, two
from profiler.analysis.memory_fit import device_memory, holds, samples_per_second, throughput_frontier
from profiler.analysis.rows import Row
from profiler.core.units import MISSING, byte_unit, bytes_text, bytes_texts, in_unit_text, scaled, second_unit
from profiler.views.plots.panels import planes, space_of
from profiler.views.tables.columns import COUNTED, heading
from profiler.views.tables.evidence import marked, value_words
from profiler.views.tables.grid import Column, Table, numbers, words

OUT, BEYOND = "OOM", "*"
BATCHES = {"batch_size", "strategy"}  # the axes over which the throughput frontier is shown too


class ShownQuantity(NamedTuple):
    """A quantity that a table shows for every row that is ok, and its text."""

    title: str
    read: Callable[[Row], float | None]
    text: Callable[[float], str]
    unit: float = 1.0  # of the text
    is_peak: bool = False
    grows: bool = True  # whether its growth along the axis is shown


def tables(rows: Sequence[Row], *, over: Sequence[str] = ()) -> list[Table]:
    """Return tables of peak, step time and samples a second over two axes, for each value of the other axes.

    Raises UserError if no two settings vary, or if a named one does not.
    """
    return [table for plane in planes(rows, over) for table in _plane(plane)]


def _plane(rows: Sequence[Row]) -> list[Table]:
    space = space_of(rows)
    across, up = two(space)
    cells = grid(rows, space, across, up)
    tables = [Table(title=heading(rows))]
    for quantity in _quantities(rows):
        columns = grid_columns(cells, across, up, quantity, rows)
        tables.append(
            Table(title=f"{quantity.title} by {across.label}", columns=columns, cuts=tuple(range(1, len(columns))))
        )
    if {across.name, up.name} == BATCHES and (best := throughput_frontier(rows)):
        tables.append(Table(title="the most samples a second up to a peak", columns=_stairs(best)))
    below = tuple(_legend(rows, across))
    return [*tables, *([Table(below=below)] if below else [])]


def grid_columns(
    cells: dict[tuple[Value, Value], Row], across: Axis, up: Axis, quantity: ShownQuantity, rows: Sequence[Row]
) -> tuple[Column, ...]:
    """Return a line for each value of `up`, with a number for each value of `across`, and how these grow."""
    names = words(up.label, "", value_words(up, rows))
    columns = [
        numbers(word, "", [_cell(cells.get((x, y)), quantity) for y in up.values])
        for x, word in zip(across.values, value_words(across, rows), strict=True)
    ]
    growths = [_growth([(x, cells.get((x, y))) for x in across.values], quantity) for y in up.values]
    if across.is_number and quantity.grows and any(growth != MISSING for growth in growths):
        columns.append(numbers("grows", "as", growths))
    return (names, *columns)


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


def _stairs(best: Sequence[Row]) -> tuple[Column, ...]:
    return (
        numbers("from", "", bytes_texts([row.readings.peak_bytes for row in best])),
        words("strategy", "", [str(row.case.label) for row in best]),
        numbers("batch", "size", [str(row.case.batch_size) for row in best]),
        numbers("samples", "a second", [_rate_text(samples_per_second(row) or 0.0) for row in best]),
    )


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
