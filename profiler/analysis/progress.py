"""How far a run has come, from its plan and its records. Pure: knows nothing of files or of screens."""

from __future__ import annotations

from collections.abc import Iterable

from profiler.case import Trial
from profiler.record import Record

FAILURES = ("failed", "crashed", "timed_out", "invalid")  # out of memory and skipped are findings


def owed(plan: Iterable[Trial], records: Iterable[Record]) -> tuple[Trial, ...]:
    """The trials of the plan that are still to be run: later rounds only where the first one was ok."""
    outcomes = {(record.case, record.round): record.outcome for record in records}
    return tuple(
        trial
        for trial in plan
        if (trial.case, trial.round) not in outcomes
        and (trial.round == 1 or outcomes.get((trial.case, 1), "ok") == "ok")
    )


def status(plan: Iterable[Trial], records: Iterable[Record]) -> str:
    """ "complete", or "partial" where trials are owed."""
    return "partial" if owed(plan, records) else "complete"


def exit_code(records: Iterable[Record]) -> int:
    """What a run with these records ends with: 1 where a trial went wrong, or where none could be measured at all."""
    outcomes = {record.outcome for record in records}
    return int(bool(outcomes.intersection(FAILURES)) or "ok" not in outcomes)
