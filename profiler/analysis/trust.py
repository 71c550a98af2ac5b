"""What makes the times of a row less than sure, as notes. Pure: knows nothing of files or of screens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from profiler.analysis.surroundings import held, others
from profiler.case import Case
from profiler.record import Note, Record
from profiler.series.drift import drift
from profiler.series.interval import uncertainty
from profiler.series.spread import spread
from profiler.units import change_text, count_text, spread_text

NOISY = 0.1  # half the interquartile range over the median; and half the range of the ratios of the rounds
DRIFT = 0.05  # a smaller change is let pass, however certain it is
LIMITS = {"samples": "--max-samples", "seconds": "--max-seconds"}  # by why sampling stopped


def doubts(rounds: Sequence[Record], ratios: Sequence[float]) -> tuple[Note, ...]:
    """Of the rounds of one measured case, and the ratio of each to its baseline: one note for every doubt there is."""
    timed = [record for record in rounds if record.readings.step_seconds and not record.case.is_predicted]
    if not timed:
        return ()
    series = [record.readings.step_seconds or () for record in timed]
    conditions = [record.readings.conditions for record in timed if record.readings.conditions]
    texts = {
        "GCP012": _noise(_joined(series), ratios),
        "GCP021": _unsure(_joined(series), timed),
        **_within_rounds(drift(series)),
        "GCP024": held(conditions),
        "GCP025": others(conditions),
    }
    return tuple(Note(code=code, text=text) for code, text in texts.items() if text)


def between_rounds(found: Mapping[Case, Sequence[Record]]) -> dict[Case, Note]:
    """By baseline: of all cases that are compared with it, whether they became slower or faster together."""
    groups: dict[Case, list[list[float]]] = {}
    for case, records in found.items():
        rounds = sorted(records, key=lambda record: record.round)
        medians = [median(record.readings.step_seconds) for record in rounds if record.readings.step_seconds]
        groups.setdefault(case.baseline, []).append(medians)
    changes = {baseline: drift(series) for baseline, series in groups.items()}
    return {
        baseline: Note(
            code="GCP023",
            text=f"the steps drift: {change_text(1 + change)} from the first rounds to the last, all strategies "
            "together; ratios are taken within a round and stand, seconds do not: let the device rest",
        )
        for baseline, change in changes.items()
        if change is not None and abs(change) >= DRIFT
    }


def _joined(series: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(second for one in series for second in one)


def _noise(seconds: tuple[float, ...], ratios: Sequence[float]) -> str | None:
    width = spread(seconds)
    if width is None or (width <= NOISY and (not ratios or max(ratios) - min(ratios) <= 2 * NOISY)):
        return None
    return "the times are noisy; a quiet machine, or more --rounds and --samples, would make them surer"


def _unsure(seconds: tuple[float, ...], rounds: Sequence[Record]) -> str | None:
    """Where a precision was asked for, and all rounds together do not give it."""
    sampling = rounds[0].case.sampling
    reached = uncertainty(seconds)
    if not sampling or (reached is not None and reached <= sampling.precision_target):
        return None
    hit = sorted({LIMITS[stopped] for one in rounds if (stopped := one.readings.stopped) in LIMITS})
    more = " or ".join(["more --rounds", *(f"a larger {flag}" for flag in hit)])
    if reached is None:
        return f"{count_text(len(seconds), 'sample')} cannot tell how sure the median is; {more} would"
    asked = spread_text(sampling.precision_target)
    return f"the median is sure to {spread_text(reached)}, not to {asked}; {more} would make it surer"


def _within_rounds(change: float | None) -> dict[str, str]:
    """A step that still becomes faster has not warmed up; one that becomes slower drifts."""
    if change is None or abs(change) < DRIFT:
        return {}
    what = f"{change_text(1 + change)} from the first third of a round to the last"
    if change < 0:
        return {"GCP022": f"the steps had not settled: {what}; more --warmup would let them"}
    return {"GCP023": f"the steps drift: {what}; let the device rest, and trust the ratios rather than the seconds"}
