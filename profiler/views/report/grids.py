"""The tables of a report, and its notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from statistics import median

import msgspec

from profiler.analysis.prediction_error import foretells
from profiler.analysis.rows import Row
from profiler.core.case import Case
from profiler.core.plan_file import strategy_label
from profiler.core.record import PHASES, Environment, Equality, Readings
from profiler.core.stats import spread
from profiler.core.units import MISSING, bytes_text, error_text, few, seconds_text, spread_text
from profiler.views.sanitize import plain, short
from profiler.views.tables.grid import Table, of_lines
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
LONGEST, LONGEST_NOTE = 100, 600  # letters of a name, and of a note
NUM_MISSING = 3  # parameters without a gradient that are named


def phases(rows: Sequence[Row]) -> Table | None:
    """Return the bytes live at the points of the step that a record stores."""
    heads = (
        "strategy",
        "before the forward",
        "forward peak",
        "kept for the backward",
        "backward peak",
        "optimizer peak",
    )
    lines = [(strategy_label(row.case.strategy), *_points(row.readings)) for row in rows if row.readings.phases]
    return _table("Live memory over the step", heads, lines, texts=1)


def _points(readings: Readings) -> tuple[str, ...]:
    peaks = {name: watermarks.allocated for name, watermarks in (readings.phases or {}).items()}
    forward, backward, optimizer = (bytes_text(peaks.get(phase)) for phase in PHASES)
    return bytes_text(readings.start_bytes), forward, bytes_text(readings.saved_bytes), backward, optimizer


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


def predictions(rows: Iterable[Row], *, twins: Twins, most: int) -> Table | None:
    """Return predictions beside what was measured or rehearsed, up to `most` lines; None if no row has a twin."""
    pairs = list(islice(chain.from_iterable(map(twins.pairs, rows)), most))
    against = " or ".join(sorted({other.evidence for _, other in pairs}))
    heads = ("strategy", "predicted peak", f"{against} peak", "peak off by", "estimated step", "measured step")
    shown = heads if any(other.step_seconds is not None for _, other in pairs) else heads[:-2]
    lines = []
    for pair in pairs:
        peaks = [bytes_text(row.readings.peak_bytes) for row in pair]
        times = [seconds_text(row.step_seconds) for row in pair]
        lines.append((strategy_label(pair[0].case.strategy), *peaks, error_text(pair[1].prediction_error), *times))
    return _table(f"Predicted and {against}", shown, [line[: len(shown)] for line in lines], texts=1)


def equality(rows: Sequence[Row]) -> Table | None:
    """Return what the equality pass found."""
    heads = ("strategy", "against", "gradients", "loss", "buffers", "random state", "worst or missing")
    numbers = ("largest difference", "noise floor")
    lines = [(strategy_label(row.case.strategy), *_equal(row, row.equality)) for row in rows if row.equality]
    return _table("Equality with the step without checkpointing", (*heads, *numbers), lines, texts=len(heads))


def _equal(row: Row, equality: Equality) -> tuple[str, ...]:
    verdicts = (equality.loss_equal, equality.buffers_equal, equality.random_state_equal)
    more = len(equality.missing) - NUM_MISSING
    missing = [*equality.missing[:NUM_MISSING], *([f"and {more} more"] if more > 0 else [])]
    lost = f"{equality.num_without_gradient} without gradient" if equality.num_without_gradient else MISSING
    named = f"no gradient: {', '.join(missing)}" if missing else equality.worst_parameter or lost
    differences = [
        MISSING if value is None else f"{value:.2g}" for value in (equality.largest_difference, equality.noise_floor)
    ]
    are_equal = ["equal" if is_equal else "differ" for is_equal in verdicts]
    return equality.against, row.gradients, *are_equal, named, *differences


def samples(rows: Sequence[Row], *, most: int) -> Table | None:
    """Return the raw samples of every part of the step in seconds, up to `most`, and their spread."""
    heads = ("strategy", "part", "samples in seconds, the rounds in order", "median", "spread")
    lines = []
    for row in rows:
        for name in TIMES:
            if times := samples_of(row, name):
                more = f" and {len(times) - most:,} more" if len(times) > most else ""
                shown = " ".join(f"{value:.6g}" for value in times[:most]) + more
                figures = seconds_text(median(times)), spread_text(spread(times))
                lines.append((strategy_label(row.case.strategy), name, shown, *figures))
    return _table("Raw samples", heads, lines, texts=3)


def environments(rows: Sequence[Row]) -> Table | None:
    """Return a column per environment, those that differ only in their start being one, and a line per known fact."""
    starts: dict[Environment, list[str]] = {}
    for row in rows:
        if row.environment:
            timeless = msgspec.structs.replace(row.environment, started=None)
            starts.setdefault(timeless, []).append(row.environment.started or "")
    distinct = list(starts)[:MOST]
    lines = [(head, *(_value(environment, name) for environment in distinct)) for name, head in FACTS.items()]
    shown = [line for line in lines if set(line[1:]) != {MISSING}]
    shown.append(("first trial began (UTC)", *(min(starts[environment]) or MISSING for environment in distinct)))
    values = ["value"] if len(distinct) == 1 else [f"environment {at + 1}" for at in range(len(distinct))]
    return _table("Environment", ["what", *values], shown, texts=1 + MOST) if distinct else None


def _value(environment: Environment, name: str) -> str:
    value = getattr(environment, name)
    return bytes_text(value) if name == "device_bytes" else MISSING if value is None else str(value)


def _table(title: str, heads: Sequence[str], lines: Sequence[tuple[str, ...]], *, texts: int) -> Table | None:
    """Return a table whose columns are numbers after the first `texts`; None without a line."""
    return Table(title=title, columns=of_lines(heads, lines, numbers=heads[texts:])) if lines else None


def remarks(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return the code, the strategies and the text of each note, in the order of the codes."""
    strategies_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in row.notes:
            strategies_of.setdefault((note.code, note.text), []).append(
                short(strategy_label(row.case.strategy), LONGEST)
            )
    return [
        (plain(code), few(strategies_of[code, text], NUM_NAMED), plain(text)[:LONGEST_NOTE])
        for code, text in sorted(strategies_of)
    ]
