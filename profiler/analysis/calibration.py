"""What measured rows tell the predictions of their model: knows nothing of torch or of screens."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from profiler.core.case import Calibration, Case
from profiler.core.record import Record


def calibrations(records: Iterable[Record]) -> dict[Case, Calibration]:
    """What was read of each baseline that was measured, by `case.baseline.twin` of the cases that it tells of."""
    found: dict[Case, Calibration] = {}
    for record in records:
        if record.readings.hidden_bytes is not None:
            found.setdefault(record.case.twin, _told(record, record.readings.hidden_bytes))
    return found


def _told(record: Record, hidden_bytes: dict[str, int]) -> Calibration:
    seconds = record.readings.step_seconds
    return Calibration(
        hidden_bytes=hidden_bytes,
        device_name=record.environment.device_name if record.environment else None,
        step_seconds=median(seconds) if seconds else None,
    )
