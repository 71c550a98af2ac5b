"""What measured rows tell the predictions of their model: knows nothing of torch or of screens."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from profiler.case import Calibration, Case
from profiler.record import Record


def calibration(case: Case, records: Iterable[Record]) -> Calibration | None:
    """What was read of the predicted case's baseline on a device of that kind; None where it was not measured."""
    measured = (record for record in records if record.readings.hidden_bytes is not None)
    found = next((record for record in measured if record.case.twin == case.baseline.twin), None)
    if found is None or found.readings.hidden_bytes is None:
        return None
    seconds = found.readings.step_seconds
    return Calibration(
        hidden_bytes=found.readings.hidden_bytes,
        device_name=found.environment.device_name if found.environment else None,
        step_seconds=median(seconds) if seconds else None,
    )
