"""Relative errors of predicted peaks: each against its twin, the same case measured or rehearsed."""

from __future__ import annotations

from collections.abc import Mapping

from profiler.core.case import Case
from profiler.core.record import Evidence, Record, evidence


def prediction_errors(pooled: Mapping[Case, Record]) -> dict[Case, tuple[float, Evidence]]:
    """Return the relative error of the predicted peak, and what it is compared with: measured, else rehearsed.

    By case, of the predictions and of what they predict; without those that are not ok, or have no twin.
    """
    errors: dict[Case, tuple[float, Evidence]] = {}
    if len({case.is_predicted for case in pooled}) < 2:
        return errors
    twins: dict[Case, list[Record]] = {}
    for case, record in pooled.items():
        if record.outcome == "ok":
            twins.setdefault(case.twin, []).append(record)
    for records in twins.values():
        records.sort(key=lambda record: evidence(record.case, record.environment))  # measured before rehearsed
        for record in records:
            case = record.case
            beside = (other for other in records if foretells(case, other.case) or foretells(other.case, case))
            twin = next(beside, None)
            predicted, held = (record, twin) if case.is_predicted else (twin, record)
            if predicted and held and predicted.readings.peak_bytes is not None and held.readings.peak_bytes:
                error = predicted.readings.peak_bytes / held.readings.peak_bytes - 1
                errors[case] = error, evidence(held.case, held.environment)
    return errors


def foretells(predicted: Case, case: Case) -> bool:
    """Whether a prediction of this case's twin is one of this case: a rehearsed case needs one for its own GPU."""
    if not predicted.is_predicted or case.is_predicted:
        return False
    return not case.is_rehearsed or case.foreseen == predicted
