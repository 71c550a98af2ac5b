"""Derives doubts about times from the conditions of their device: clock, heat, power, other processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import fmean, median

from profiler.core.record import Conditions, Record
from profiler.core.units import bytes_text, change_text, in_unit_text

SLOWED = 0.95  # fraction of the highest clock: a clock held down, or falling, to this is accepted
SHARE = 0.1  # fraction of all cores that other processes may use
LEAST_SECONDS = 0.5  # in less time no share can be computed, since the system counts in hundredths
APART = 0.05  # a smaller relative difference of clocks is accepted

Series = Sequence[Sequence[Conditions]]  # of each round, in order of time


def clock_held(series: Series) -> str | None:
    """Return a sentence if the clock was held down, or fell, during timing: by what, how far, how hot it was."""
    moments = [moment for round_ in series for moment in round_]
    clocks = [moment.clock_hertz for moment in moments if moment.clock_hertz is not None]
    highest = _most(moment.highest_clock_hertz for moment in moments)
    reasons = list(dict.fromkeys(reason for moment in moments for reason in moment.held_by))
    is_held = bool(reasons) and (not clocks or highest is None or min(clocks) < SLOWED * highest)
    if not is_held and not any(_falls(round_) for round_ in series):
        return None
    state = ", ".join([*_clock(clocks, highest), *_heat(moments)])
    by = f" by {' and '.join(reasons)}" if reasons else ""
    return f"the clock was held down{by}: {state}; cooling, or nvidia-smi --lock-gpu-clocks, makes times comparable"


def other_processes(series: Series) -> tuple[str | None, str | None]:
    """Return a sentence if other processes used the device during timing, and what helps besides a quiet machine."""
    if not series:
        return None, None
    on_device = max((moment.num_others or 0 for round_ in series for moment in round_), default=0)
    if on_device:
        held_bytes = max((moment.others_bytes or 0 for round_ in series for moment in round_), default=0)
        size = f" that hold{'s' if on_device == 1 else ''} {bytes_text(held_bytes)}" if held_bytes else ""
        shared = f"{on_device} other process{'' if on_device == 1 else 'es'}{size}"
        return f"the device is shared with {shared}", "another --device"
    spans = [(round_[0], round_[-1]) for round_ in series if round_[0].others_seconds is not None]
    wall = sum(last.at_seconds - first.at_seconds for first, last in spans)
    busy = sum((last.others_seconds or 0.0) - (first.others_seconds or 0.0) for first, last in spans)
    cores = max((first.num_cores or 0 for first, _ in spans), default=0)
    if wall < LEAST_SECONDS or not cores or busy < SHARE * cores * wall:
        return None, None
    return f"other processes kept {busy / wall:.1f} of {cores} cores busy", None


def _falls(round_: Sequence[Conditions]) -> bool:
    clocks = [moment.clock_hertz for moment in round_ if moment.clock_hertz is not None]
    return any(later < SLOWED * highest for later, highest in zip(clocks[1:], accumulate(clocks, max), strict=False))


def _clock(clocks: Sequence[float], highest: float | None) -> list[str]:
    if not clocks:
        return []
    span = f"{_megahertz(min(clocks))} to {_megahertz(max(clocks))}"
    return [span if highest is None else f"{span} of {_megahertz(highest)}"]


def _heat(moments: Sequence[Conditions]) -> list[str]:
    celsius = _most(moment.celsius for moment in moments)
    watts = _most(moment.watts for moment in moments)
    limit = _most(moment.limit_watts for moment in moments)
    heat = [] if celsius is None else [f"up to {in_unit_text(round(celsius), 'C')}"]
    if watts is not None:
        of_limit = "" if limit is None else f" of {in_unit_text(round(limit), 'W')}"
        heat.append(f"up to {in_unit_text(round(watts), 'W')}{of_limit}")
    return heat


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _megahertz(hertz: float) -> str:
    return in_unit_text(round(hertz / 1e6), "MHz")


def clocks_apart(rounds: Sequence[Record], baseline: Sequence[Record]) -> str | None:
    """Return a sentence if a round ran at another clock than its baseline, so that part of the ratio is the clock's."""
    pairs = [
        (mine, none) for record, base in _pairs(rounds, baseline) if (mine := clock(record)) and (none := clock(base))
    ]
    mine, none = max(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1), default=(1.0, 1.0))
    if abs(mine / none - 1) <= APART:
        return None
    clocks = f"{_megahertz(mine)}, that of its baseline at {_megahertz(none)}"
    return f"the clock differed: a round ran at {clocks}; nvidia-smi --lock-gpu-clocks makes times comparable"


def in_cycles(rounds: Sequence[Record], baseline: Sequence[Record]) -> str:
    """Return the change of the time in clock cycles, as the end of a sentence; empty if no clocks are known."""
    ratios = [
        median(record.readings.step_seconds or ()) / median(base.readings.step_seconds or ()) * mine / none
        for record, base in _pairs(rounds, baseline)
        if (mine := clock(record)) and (none := clock(base))
    ]
    return f"; in cycles the step is {change_text(median(ratios))}" if ratios else ""


def clock(record: Record) -> float | None:
    """Return the mean clock while the steps of a round were timed, in hertz; None if it is not known."""
    clocks = [moment.clock_hertz for moment in record.readings.conditions or () if moment.clock_hertz]
    return fmean(clocks) if clocks else None


def _pairs(rounds: Sequence[Record], baseline: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return each timed record with the baseline's of the same round; nothing for the baseline itself."""
    of_round = {record.round: record for record in baseline if record.readings.step_seconds}
    pairs = [(record, of_round.get(record.round)) for record in rounds if record.readings.step_seconds]
    return [(record, base) for record, base in pairs if base is not None and record.case != base.case]
