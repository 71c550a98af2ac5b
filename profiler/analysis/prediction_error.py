"""How far predicted peaks are off: each beside its twin, the same point measured or rehearsed."""

from __future__ import annotations

from typing import NamedTuple

from profiler.core.case import Case
from profiler.core.record import Evidence, Record, evidence


class TwinPeak(NamedTuple):
    """The peak of one of the cases that are the same point, on a device of the same kind."""

    evidence: Evidence
    place: int  # in the order of the cases
    peak_bytes: int | None


class TwinPeaks:
    """The peaks of one point: those that are predicted, and those that a prediction is held against."""

    def __init__(self) -> None:
        self._predicted: dict[Case, TwinPeak] = {}
        self._run: TwinPeak | None = None  # the first that is measured, else the first, of what any prediction is of
        self._rehearsed: dict[Case, TwinPeak] = {}  # the same of what only one prediction is of, by that

    def add(self, case: Case, peak: TwinPeak) -> None:
        if case.is_predicted:
            self._predicted[case] = peak
        elif case.is_rehearsed:
            self._rehearsed[case.foreseen] = min(self._rehearsed.get(case.foreseen, peak), peak)
        else:
            self._run = min(self._run or peak, peak)

    def of(self, case: Case) -> TwinPeak | None:
        """What a prediction is held against, measured before rehearsed; of another case, what is predicted of it."""
        if case.is_predicted:
            return min(filter(None, (self._run, self._rehearsed.get(case))), default=None)
        if case.is_rehearsed:
            return self._predicted.get(case.foreseen)
        return next(iter(self._predicted.values()), None)


def twin_peaks(pooled: dict[Case, Record]) -> dict[Case, TwinPeaks]:
    """What each point peaks at, by its twin; nothing where there are no predictions beside others."""
    peaks: dict[Case, TwinPeaks] = {}
    if len({case.is_predicted for case in pooled}) < 2:
        return peaks
    for place, (case, record) in enumerate(pooled.items()):
        if record.outcome == "ok":
            peak = TwinPeak(evidence(case, record.environment), place, record.readings.peak_bytes)
            peaks.setdefault(case.twin, TwinPeaks()).add(case, peak)
    return peaks


def prediction_error(record: Record, peaks: TwinPeaks | None) -> tuple[float | None, Evidence | None]:
    """How far the predicted peak is off, and what it is held against: the measured peak, else the rehearsed."""
    case, peak = record.case, record.readings.peak_bytes
    twin = peaks.of(case) if peaks and record.outcome == "ok" else None
    if twin is None:
        return None, None
    predicted, held = (peak, twin.peak_bytes) if case.is_predicted else (twin.peak_bytes, peak)
    against = twin.evidence if case.is_predicted else evidence(case, record.environment)
    return (predicted / held - 1, against) if predicted is not None and held else (None, None)


def foretells(predicted: Case, case: Case) -> bool:
    """Whether a prediction is of its twin, this case; that of another GPU than the rehearsed one is not."""
    if not predicted.is_predicted or case.is_predicted:
        return False
    return not case.is_rehearsed or case.foreseen == predicted
