"""The peak of a step as a number that a test can compare with a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from profiler.core.devices import FAKE
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Evidence, Record, evidence
from profiler.core.units import bytes_text, parse_bytes
from profiler.views.tables.evidence import device_word
from profiler.workflows.in_process.arguments import Model
from profiler.workflows.in_process.trials import measure, predict

BY = {"predicted": predict, "measured": measure}
REHEARSED = "by='predicted' rehearses a GPU where that is possible"


class PeakMemory(int):
    """The peak of allocated bytes in a training step, with its evidence and its record."""

    evidence: Evidence
    record: Record

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the peak of a record. Raises UserError if it has none."""
        nbytes = record.readings.peak_bytes if record.readings else None
        if nbytes is None:
            raise UserError(f"'{record.case.model}' has no peak: {record.outcome}", hint=record.detail)
        peak = cls(nbytes)
        peak.record, peak.evidence = record, evidence(record.case, record.environment)
        return peak

    def __repr__(self) -> str:
        case = self.record.case
        device = device_word(case.device).removeprefix(FAKE)
        settings = f"{case.model} under {case.label}, {case.optimizer}, {case.precision}, {device}"
        return f"{bytes_text(int(self))} {self.evidence} ({settings})"


def peak_memory(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    by: str = "predicted",
    **settings: Any,
) -> PeakMemory:
    """Returns the peak of one training step; predicted, or measured on a device that is here.

    The model and the settings are as for `profiler.predict` and `profiler.measure`. Raises UserError for what cannot be
    asked for, and as these do.
    """
    if by not in BY:
        raise UserError(f"by: '{by}' is not known", hint=REHEARSED if by == "rehearsed" else f"try {', '.join(BY)}")
    return PeakMemory.of(BY[by](model, strategy, batch=batch, **settings))


def budget_bytes(budget: str | int) -> int:
    """Return a budget in bytes. Raises UserError if it cannot be read."""
    return parse_bytes(budget, flag="budget") if isinstance(budget, str) else budget


def failure(peak: PeakMemory, budget: int | None, *, named: str) -> str | None:
    """Return why a peak is over a budget, what holds it and what to try; None if it fits, or there is no budget."""
    if budget is None or peak <= budget:
        return None
    over = f"{bytes_text(peak - budget)} over {named} of {bytes_text(budget)}"
    readings = peak.record.readings
    lines = [f"peak memory {peak!r}", f"is {over}"]
    if readings and readings.timeline and readings.timeline.modules:
        largest = sorted(readings.timeline.modules.items(), key=lambda item: -item[1])[:3]
        held = [f"{name or 'outside of all modules'} {bytes_text(size)}" for name, size in largest]
        lines.append(f"in the {readings.peak_phase} the most is held by {', '.join(held)}")
    elif readings:
        lines.append(f"the peak is in the {readings.peak_phase}")
    lines.append("profiler.explain says why, profiler.plan where to checkpoint so that it fits")
    return "\n".join(lines)
