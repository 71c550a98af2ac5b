"""Relative errors of predicted peaks: each against its twin, the same case measured or rehearsed."""

from __future__ import annotations

from typing import NamedTuple

from profiler.core.case import Case
from profiler.core.record import Evidence, Record, evidence


class TwinPeak(NamedTuple):
    """The peak of one of several twins: the same case on a device of the same kind."""

    evidence: Evidence
    place: int  # index in the order of the cases
    peak_bytes: int | None


class TwinPeaks:
    """The peaks of one set of twins: those that are predicted, and those that predictions are compared with."""

    def __init__(self) -> None:
        self._predicted: dict[Case, TwinPeak] = {}
        self._run: TwinPeak | None = None  # the first measured peak, else the first: for all predictions
        self._rehearsed: dict[Case, TwinPeak] = {}  # the rehearsed peaks, each for one prediction, by that

    def add(self, case: Case, peak: TwinPeak) -> None:
        if case.is_predicted:
            self._predicted[case] = peak
        elif case.is_rehearsed:
            self._rehearsed[case.foreseen] = min(self._rehearsed.get(case.foreseen, peak), peak)
        else:
            self._run = min(self._run or peak, peak)

    def of(self, case: Case) -> TwinPeak | None:
        """Return what a prediction is compared with, measured before rehearsed; for any other case, its prediction."""
        if case.is_predicted:
            return min(filter(None, (self._run, self._rehearsed.get(case))), default=None)
        if case.is_rehearsed:
            return self._predicted.get(case.foreseen)
        return next(iter(self._predicted.values()), None)


def twin_peaks(pooled: dict[Case, Record]) -> dict[Case, TwinPeaks]:
    """Return the peaks by twin; empty if there are no predictions, or nothing but predictions."""
    peaks: dict[Case, TwinPeaks] = {}
    if len({case.is_predicted for case in pooled}) < 2:
        return peaks
    for place, (case, record) in enumerate(pooled.items()):
        if record.outcome == "ok":
            peak = TwinPeak(evidence(case, record.environment), place, record.readings.peak_bytes)
            peaks.setdefault(case.twin, TwinPeaks()).add(case, peak)
    return peaks


def prediction_error(record: Record, peaks: TwinPeaks | None) -> tuple[float | None, Evidence | None]:
    """Return the relative error of the predicted peak, and what it is compared with: measured, else rehearsed."""
    case, peak = record.case, record.readings.peak_bytes
    twin = peaks.of(case) if peaks and record.outcome == "ok" else None
    if twin is None:
        return None, None
    predicted, held = (peak, twin.peak_bytes) if case.is_predicted else (twin.peak_bytes, peak)
    against = twin.evidence if case.is_predicted else evidence(case, record.environment)
    return (predicted / held - 1, against) if predicted is not None and held else (None, None)


def foretells(predicted: Case, case: Case) -> bool:
    """Whether a prediction of this case's twin is one of this case: a rehearsed case needs one for its own GPU."""
    if not predicted.is_predicted or case.is_predicted:
        return False
    return not case.is_rehearsed or case.foreseen == predicted
