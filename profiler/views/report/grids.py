"""The tables of a report, as cells of text under column heads, and its notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from statistics import median

import msgspec

from profiler.analysis.prediction_error import foretells
from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.record import PHASES, Environment, Equality, Readings
from profiler.core.stats import spread
from profiler.core.strategy_label import strategy_label
from profiler.core.units import MISSING, bytes_text, error_text, few, seconds_text, spread_text
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import columns
from profiler.views.tables.samples import TIMES, samples_of

FACTS = {  # the fields of an environment that are shown, with their heads
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
LONGEST_NOTE = 600  # letters

LONGEST_CELL = 100  # letters
NUM_MISSING = 3  # parameters without a gradient that are named


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a column."""

    text: str
    is_number: bool = False


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A table. The first cell of a line names it; `marks` is "ok", "frontier" or "bad" for each line, or empty."""

    caption: str
    heads: tuple[Head, ...]
    lines: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()


def main(rows: Sequence[Row]) -> Grid:
    """Return the main table of the rows, the same that every view shows."""
    shown = columns(rows).all
    marks = ["bad" if row.outcome != "ok" else "frontier" if row.on_frontier else "ok" for row in rows]
    return Grid(
        caption="Every strategy",
        heads=tuple(Head(text=column.label, is_number=column.is_number) for column in shown),
        lines=tuple(tuple(cell(column.cells[at]) for column in shown) for at in range(len(rows))),
        marks=tuple(marks),
    )


def phases(rows: Sequence[Row]) -> Grid | None:
    """Return the bytes live at the points of the step that a record stores."""
    heads = (
        "strategy",
        "before the forward",
        "forward peak",
        "kept for the backward",
        "backward peak",
        "optimizer peak",
    )
    lines = [(cell(strategy_label(row.case.strategy)), *_points(row.readings)) for row in rows if row.readings.phases]
    return _grid("Live memory over the step", heads, lines, texts=1)


class Twins:
    """Pairs the predictions of a run with the measured or rehearsed rows of the same point, their twins."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._of_point: dict[Case, list[Row]] = {}
        for row in rows:
            if row.prediction_error is not None:
                self._of_point.setdefault(row.case.twin, []).append(row)

    def pairs(self, row: Row) -> Iterator[tuple[Row, Row]]:
        """Yield (prediction, row) pairs: a row with its predictions, or a prediction with the rows it compares to."""
        if row.prediction_error is None:
            return
        is_predicted = row.evidence == "predicted"
        for twin in self._of_point.get(row.case.twin, ()):
            if not is_predicted and foretells(twin.case, row.case):
                yield twin, row
            elif is_predicted and twin.evidence == row.prediction_against and foretells(row.case, twin.case):
                yield row, twin


def predictions(rows: Iterable[Row], *, twins: Twins, most: int) -> Grid | None:
    """Return predictions beside what was measured or rehearsed, up to `most` lines; None if no row has a twin."""
    pairs = list(islice(chain.from_iterable(map(twins.pairs, rows)), most))
    against = " or ".join(sorted({other.evidence for _, other in pairs}))
    heads = ("strategy", "predicted peak", f"{against} peak", "peak off by", "estimated step", "measured step")
    shown = heads if any(other.step_seconds is not None for _, other in pairs) else heads[:-2]
    lines = [_beside(predicted, other)[: len(shown)] for predicted, other in pairs]
    return _grid(f"Predicted and {against}", shown, lines, texts=1)


def equality(rows: Sequence[Row]) -> Grid | None:
    """Return what the equality pass found."""
    heads = ("strategy", "against", "gradients", "loss", "buffers", "random state", "worst or missing")
    numbers = ("largest difference", "noise floor")
    lines = [(cell(strategy_label(row.case.strategy)), *_equal(row, row.equality)) for row in rows if row.equality]
    return _grid("Equality with the step without checkpointing", (*heads, *numbers), lines, texts=len(heads))


def samples(rows: Sequence[Row], *, most: int) -> Grid | None:
    """Return the raw samples of every part of the step in seconds, up to `most`, and their spread."""
    heads = ("strategy", "part", "samples in seconds, the rounds in order", "median", "spread")
    lines = [
        (
            cell(strategy_label(row.case.strategy)),
            name,
            _values(times, most),
            seconds_text(median(times)),
            spread_text(spread(times)),
        )
        for row in rows
        for name in TIMES
        if (times := samples_of(row, name))
    ]
    return _grid("Raw samples", heads, lines, texts=3)


def cell(text: object) -> str:
    """Return a value as a cell of one line that is safe to show, shortened to LONGEST_CELL."""
    return short(text, LONGEST_CELL)


def _grid(caption: str, heads: Sequence[str], lines: Sequence[tuple[str, ...]], *, texts: int) -> Grid | None:
    """Return a table whose columns are numbers after the first `texts`; None without a line."""
    named = tuple(Head(text=text, is_number=at >= texts) for at, text in enumerate(heads))
    return Grid(caption=caption, heads=named, lines=tuple(lines)) if lines else None


def _points(readings: Readings) -> tuple[str, ...]:
    peaks = {name: watermarks.allocated for name, watermarks in (readings.phases or {}).items()}
    forward, backward, optimizer = (bytes_text(peaks.get(phase)) for phase in PHASES)
    return bytes_text(readings.start_bytes), forward, bytes_text(readings.saved_bytes), backward, optimizer


def _beside(predicted: Row, other: Row) -> tuple[str, ...]:
    peaks = [bytes_text(row.readings.peak_bytes) for row in (predicted, other)]
    times = [seconds_text(row.step_seconds) for row in (predicted, other)]
    return cell(strategy_label(predicted.case.strategy)), *peaks, error_text(other.prediction_error), *times


def _equal(row: Row, equality: Equality) -> tuple[str, ...]:
    cells = [row.gradients]
    cells += [
        "equal" if is_equal else "differ"
        for is_equal in (equality.loss_equal, equality.buffers_equal, equality.random_state_equal)
    ]
    more = len(equality.missing) - NUM_MISSING
    missing = [*equality.missing[:NUM_MISSING], *([f"and {more} more"] if more > 0 else [])]
    lost = f"{equality.num_without_gradient} without gradient" if equality.num_without_gradient else MISSING
    named = f"no gradient: {', '.join(missing)}" if missing else equality.worst_parameter or lost
    differences = (equality.largest_difference, equality.noise_floor)
    return cell(equality.against), *cells, cell(named), *map(_number, differences)


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2g}"


def _values(values: tuple[float, ...], most: int) -> str:
    more = len(values) - most
    return " ".join(f"{value:.6g}" for value in values[:most]) + (f" and {more:,} more" if more > 0 else "")


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One note, with the strategies that it concerns."""

    code: str
    text: str
    strategies: str


def environments(rows: Sequence[Row]) -> Grid | None:
    """Return a column per environment, those that differ only in their start being one, and a line per known fact."""
    all_environments = [row.environment for row in rows if row.environment]
    distinct = list(dict.fromkeys(map(_timeless, all_environments)))[:MOST]
    if not distinct:
        return None
    lines = [(head, *(_value(environment, name) for environment in distinct)) for name, head in FACTS.items()]
    shown = [line for line in lines if set(line[1:]) != {MISSING}]
    starts: dict[Environment, list[str]] = {}
    for environment in all_environments:
        starts.setdefault(_timeless(environment), []).append(environment.started or "")
    shown.append(("first trial began (UTC)", *(cell(min(starts[environment])) or MISSING for environment in distinct)))
    heads = ["what", *(["value"] if len(distinct) == 1 else [f"environment {at + 1}" for at in range(len(distinct))])]
    return Grid(caption="Environment", heads=tuple(Head(text=text) for text in heads), lines=tuple(shown))


def remarks(rows: Sequence[Row]) -> tuple[Remark, ...]:
    """Return one remark per code and text, in the order of the codes."""
    strategies_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in row.notes:
            strategies_of.setdefault((note.code, note.text), []).append(cell(strategy_label(row.case.strategy)))
    return tuple(
        Remark(code=plain(code), text=plain(text)[:LONGEST_NOTE], strategies=few(strategies_of[code, text], NUM_NAMED))
        for code, text in sorted(strategies_of)
    )


def _timeless(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, started=None)


def _value(environment: Environment, name: str) -> str:
    value = getattr(environment, name)
    return bytes_text(value) if name == "device_bytes" else MISSING if value is None else cell(value)
