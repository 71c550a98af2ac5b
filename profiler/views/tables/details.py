"""Behind the rows of a table: samples, ranks, numbers over two axes; lists of names, blocks and run folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from profiler.analysis import axes, progress
from profiler.analysis.advice import device_memory, holds, samples_per_second, throughput_frontier
from profiler.analysis.axes import Space, grid, nearest_growth, two
from profiler.analysis.rows import TIMES, Row, rows
from profiler.core import catalogue, units
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.record import Evidence, ModelSummary, RankBytes, evidence
from profiler.core.stats import spread, uncertainty
from profiler.core.units import MISSING, count_text, few, scaled, second_unit, spread_text
from profiler.runs import REFERENCE, read_tags, reference, reference_names, runs
from profiler.runs.store import load
from profiler.training import models
from profiler.views.tables import Table, byte_columns, numbers, telling, words
from profiler.views.tables.columns import (
    COUNTED,
    device_word,
    groups,
    heading,
    in_order,
    kinds_text,
    marked,
    reasons,
    value_words,
)

OUT, BEYOND = "OOM", "*"
RATE_TEXT = partial(units.in_unit_text, unit="")
BATCHES = {"batch_size", "strategy"}  # the axes over which the throughput frontier is shown too
STOPPED = {
    "target": "sure enough",
    "samples": "--max-samples reached",
    "seconds": "--max-seconds reached",
    "limit": "--stage-limit near",
    "look": "a first look",
}


def samples_of(row: Row, name: str) -> tuple[float, ...]:
    """Return the samples of one part of the step, in seconds; empty if it was not measured."""
    seconds: tuple[float, ...] | None = getattr(row.readings, f"{name}_seconds")
    return seconds or ()


def _sampling(row: Row) -> str:
    """Return how certain the median is, and how many warm-up steps and samples each round had and why it ended."""
    reached = uncertainty(samples_of(row, "step"))
    sure = "too few samples to be sure of the median"
    parts = [sure if reached is None else f"the median is known to {spread_text(reached)}"]
    for record in (record for record in row.rounds if record.readings.step_seconds):
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


def samples(rows: Sequence[Row]) -> list[Table]:
    """Return the samples of each row in the order of the rounds, with their spread and why sampling ended."""
    tables = []
    for group in groups(rows):
        size, unit = second_unit(second for row in group for name in TIMES for second in samples_of(row, name))
        all_times = [{name: found for name in ("warmup", *TIMES) if (found := samples_of(row, name))} for row in group]
        tables.append(Table(title=heading(group) + (f", samples in {unit}" if any(all_times) else "")))
        below = reasons(group)
        for row, times in zip(group, all_times, strict=True):
            strategy = strategy_label(row.case.strategy)
            texts = [" ".join(scaled(second, size) for second in seconds) for seconds in times.values()]
            columns = (
                words("part", "", ["warm-up" if name == "warmup" else name for name in times]),
                numbers("spread", "", ["" if name == "warmup" else spread_text(spread(times[name])) for name in times]),
                words("samples, the rounds in order", "", texts),
            )
            if times:
                sampled = (_sampling(row),) if "step" in times else ()
                tables.append(Table(title=strategy, columns=columns, below=sampled))
            elif row.outcome == "ok":
                why = "a rehearsal has no times" if group[0].evidence == "rehearsed" else "time not measured"
                below.append(f"{strategy}: {why}")
        tables.append(Table(below=tuple(below)))
    return tables


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

    def of(self, row: Row) -> float | None:
        return self.read(row) if row.outcome == "ok" else None


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
    size, unit = units.byte_unit(row.readings.peak_bytes for row in rows)
    second, second_name = second_unit(row.step_seconds for row in rows)
    in_bytes, in_seconds = partial(scaled, size=size), partial(scaled, size=second)
    peak, saved = (f"{marked(name, rows)} ({unit})" for name in ("peak memory", "saved memory"))
    quantities = (
        ShownQuantity(peak, lambda row: row.readings.peak_bytes, in_bytes, size, is_peak=True),
        ShownQuantity(saved, lambda row: row.readings.saved_bytes, in_bytes, size),
        ShownQuantity(f"step time ({second_name})", lambda row: row.step_seconds, in_seconds, second),
        ShownQuantity("samples a second", samples_per_second, RATE_TEXT, grows=False),
    )
    for quantity in (each for each in quantities if any(each.of(row) is not None for row in rows)):
        columns = [
            words(up.label, "", value_words(up, rows)),
            *(
                numbers(word, "", [_cell(cells.get((x, y)), quantity) for y in up.values])
                for x, word in zip(across.values, value_words(across, rows), strict=True)
            ),
        ]
        growths = []
        for y in up.values:
            row_of = {x: row for x in across.values if isinstance(x, int | float) and (row := cells.get((x, y)))}
            known = {x: value for x, row in row_of.items() if (value := quantity.of(row)) is not None}
            growth = nearest_growth(list(map(float, known)), list(known.values()))
            growths.append(MISSING if growth is None else growth.text(quantity.unit))
        if across.is_number and quantity.grows and any(growth != MISSING for growth in growths):
            columns.append(numbers("grows", "as", growths))
        title = f"{quantity.title} by {across.label}"
        yield Table(title=title, columns=tuple(columns), cuts=tuple(range(1, len(columns))))
    if {across.name, up.name} == BATCHES and (best := throughput_frontier(rows)):
        stairs = (
            numbers("from", "", units.bytes_texts([row.readings.peak_bytes for row in best])),
            words("strategy", "", [str(row.case.label) for row in best]),
            numbers("batch", "size", [str(row.case.batch_size) for row in best]),
            numbers("samples", "a second", [RATE_TEXT(samples_per_second(row) or 0.0) for row in best]),
        )
        yield Table(title="the most samples a second up to a peak", columns=stairs)
    device_bytes = device_memory(rows)
    memory = "the device's memory" if device_bytes is None else f"the device's {units.bytes_text(device_bytes)}"
    beyond = any(row.outcome == "ok" and holds(row) is False for row in rows)
    signs = [f"{BEYOND} does not fit {memory}, {COUNTED}"] if beyond else []
    signs += [f"{OUT}: ran out of memory"] if any(row.outcome == "out_of_memory" for row in rows) else []
    signs += [f"n: {across.label}"] if across.is_number and len(across.values) > 2 else []
    yield Table(below=tuple(signs))


def _cell(row: Row | None, quantity: ShownQuantity) -> str:
    if row is None:
        return MISSING
    if row.outcome != "ok":
        return OUT if row.outcome == "out_of_memory" else row.outcome.replace("_", " ")
    value = quantity.of(row)
    mark = BEYOND if quantity.is_peak and holds(row) is False else ""
    return MISSING if value is None else f"{mark}{quantity.text(value)}"


def planes(rows: Sequence[Row], over: Sequence[str]) -> list[list[Row]]:
    """Return planes of rows over two settings, named by `over` or chosen, one for each value of the other settings.

    Raises UserError if no two settings vary together.
    """
    space = space_of(rows)
    chosen = axes.two(space, over)
    groups_of = axes.groups_over(rows, space, [axis.name for axis in chosen])
    panels = [panel for panel in groups_of if len(space_of(panel).axes) > 1]
    if not panels:
        names = " and ".join(axis.label for axis in chosen)
        raise UserError(f"nothing to lay out over two axes: {names} do not vary together", hint=axes.HINT)
    return panels


def has_plane(rows: Sequence[Row]) -> bool:
    """Whether settings besides the strategy vary, so that a plane can show them."""
    if len(groups(rows)) < 2:
        return False
    try:
        return bool(planes(rows, ()))
    except UserError:
        return False


def space_of(rows: Sequence[Row]) -> Space:
    """Return the axes of these rows; model options that a case leaves out count with their defaults."""
    defaults_of = {}
    for name in {row.case.model.name for row in rows}:
        entry = catalogue.listed(name, models.TABLE)  # never the user's own code: a run folder may name any file
        options = entry.options if entry else ()
        defaults_of[name] = {option.name: option.default for option in options if option.default is not None}
    return axes.space((row.case for row in rows), defaults_of)


LISTED_BYTES = 512 << 20  # the largest trials.jsonl that a list reads; 100,000 trials take half of it
MOST_NAMED = 3  # blocks
FEEDS = {True: "yes", False: "no", None: MISSING}


def blocks(outline: ModelSummary, *, better: str | None = None) -> Table:
    """Return a line per block in order, under the name of the model; `better`, a note on other blocks, goes below."""
    listed = outline.blocks
    head = [outline.model, count_text(outline.num_parameters, "parameter"), count_text(len(listed), "block")]
    batch = [f"batch {outline.batch_size}"] if outline.batch_size else []
    columns = (
        words("block", "", [block.name for block in listed]),
        words("class", "", [block.kind for block in listed]),
        numbers("parameters", "", [str(block.num_parameters) for block in listed]),
        words("output", "", [block.output or "not run" for block in listed]),
        words("joins", "the next", [FEEDS[block.feeds_next] for block in listed]),
    )
    apart = few([block.name for block in listed if block.feeds_next is False], MOST_NAMED)
    joined = f"a segment ends at a block with 'no', as the next takes more than its output: {apart}" if apart else None
    below = [f"note: {line}" for line in (outline.remark or joined, better) if line]
    return Table(title=", ".join([*head, *batch]), columns=columns, below=tuple(below))


class RunOverview(msgspec.Struct, frozen=True, kw_only=True):
    """What `gcprof runs list` shows of a run; None if its files could not be read."""

    name: str
    status: str  # complete, partial, unreadable, or large: not read for a list
    created: str | None = None  # UTC, ISO 8601
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()  # measured, rehearsed, predicted
    num_ok: int | None = None
    num_rows: int | None = None  # of the whole plan
    tags: tuple[str, ...] = ()


def overviews(folder: Path) -> list[RunOverview]:
    """Return every run below the folder, the newest last; a damaged one is listed as unreadable."""
    unordered = (_read(path, path.name) for path in runs(folder))
    return sorted(unordered, key=lambda run: (run.created or "", run.name))


def references() -> list[RunOverview]:
    """Return every run that comes with gcprof, by the name that commands take."""
    return [_read(reference(name), f"{REFERENCE}{name}") for name in reference_names()]


def run_list(listed: Sequence[RunOverview]) -> Table:
    """Return a line per run; its status stands beside its rows that are ok, unless it is complete."""
    rows_ok = []
    for run in listed:
        counted = [] if run.num_ok is None else [f"{run.num_ok}/{run.num_rows} {kinds_text(run.evidence)}"]
        rows_ok.append(", ".join([*counted, *([run.status] if run.status != "complete" else [])]))
    columns = (
        words("run", "", [run.name for run in listed]),
        words("date (UTC)", "", [(run.created or MISSING)[:16].replace("T", " ") for run in listed]),
        words("models", "", [", ".join(run.models) or MISSING for run in listed]),
        words("device", "", [", ".join(map(device_word, run.devices)) or MISSING for run in listed]),
        words("rows ok", "", rows_ok),
        *([words("tags", "", [", ".join(run.tags) for run in listed])] if any(run.tags for run in listed) else []),
    )
    return Table(columns=columns)


def _read(path: Path, name: str) -> RunOverview:
    """Return the overview of a folder; a damaged or large one neither stops nor delays the list."""
    try:
        if (path / "trials.jsonl").exists() and (path / "trials.jsonl").stat().st_size > LISTED_BYTES:
            return RunOverview(name=name, status="large", tags=read_tags(path))
        run = load(path)
        planned, table = progress.rows_of(run.manifest.plan, run.records), rows(run.records, largest=0)
        known = {row.case: row.evidence for row in table}
        of_first = {case: run.manifest.environment for case in planned if case.device == planned[0].device}
        owed = {evidence(case, of_first.get(case)) for case in planned if case not in known}  # what rows will have
        return RunOverview(
            name=name,
            status=run.status,
            created=run.manifest.created,
            models=tuple(dict.fromkeys(str(case.model) for case in planned)),
            devices=tuple(dict.fromkeys(case.device for case in planned)),
            evidence=in_order(owed | {*known.values()}),
            num_ok=sum(row.outcome == "ok" for row in table),
            num_rows=len(planned),
            tags=read_tags(run.folder),
        )
    except (UserError, OSError, MemoryError, RecursionError):
        return RunOverview(name=name, status="unreadable", tags=read_tags(path))
