"""Ratios of times at one clock: what they are in cycles of a device that changed it. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from profiler.core.record import Record
from profiler.core.units import change_text, in_unit_text

APART = 0.05  # a smaller difference of the clocks is let pass


def apart(rounds: Sequence[Record], baseline: Sequence[Record]) -> str | None:
    """Whether a round ran at another clock than its baseline, so that part of the ratio is the clock's."""
    pairs = [(mine, none) for one, other in _pairs(rounds, baseline) if (mine := clock(one)) and (none := clock(other))]
    mine, none = max(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1), default=(1.0, 1.0))
    if abs(mine / none - 1) <= APART:
        return None
    clocks = f"{_megahertz(mine)}, that of its baseline at {_megahertz(none)}"
    return f"the clock was another: a round ran at {clocks}; nvidia-smi --lock-gpu-clocks makes times comparable"


def told(rounds: Sequence[Record], baseline: Sequence[Record]) -> str:
    """The change of the time in cycles, as the end of a sentence; nothing where no clocks are known."""
    ratios = [
        _ratio(one, other) * mine / none
        for one, other in _pairs(rounds, baseline)
        if (mine := clock(one)) and (none := clock(other))
    ]
    return f"; in cycles the step is {change_text(median(ratios))}" if ratios else ""


def clock(record: Record) -> float | None:
    """The mean clock while the steps of a round were timed, in hertz."""
    found = [one.clock_hertz for one in record.readings.conditions or () if one.clock_hertz]
    return fmean(found) if found else None


def _pairs(rounds: Sequence[Record], baseline: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Each timed record with the baseline's of the same round; nothing for the baseline itself."""
    of_round = {record.round: record for record in baseline if record.readings.step_seconds}
    pairs = [(record, of_round.get(record.round)) for record in rounds if record.readings.step_seconds]
    return [(one, other) for one, other in pairs if other is not None and one.case != other.case]


def _ratio(one: Record, other: Record) -> float:
    return median(one.readings.step_seconds or ()) / median(other.readings.step_seconds or ())


def _megahertz(hertz: float) -> str:
    return in_unit_text(round(hertz / 1e6), "MHz")
