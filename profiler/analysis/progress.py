"""How far a run has come by its records, and which of them stand."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from profiler.analysis.rows import latest
from profiler.core.case import Calibration, Case, Trial
from profiler.core.record import Record

FAILURES = ("failed", "crashed", "timed_out", "invalid")  # out of memory and skipped are results
REFUSALS = ("failed", "skipped", "invalid")  # caused by the model or its code, if nothing was measured
LOST = ("crashed", "timed_out")  # ended from outside, which says nothing about the case
HAS_OWN = "GCP047"  # the note of a baseline whose model itself calls checkpoints


def owed(plan: Iterable[Trial], records: Iterable[Record], *, perhaps: bool = False) -> tuple[Trial, ...]:
    """Return the trials of the plan that are still to be run.

    Later rounds only if the first one was ok, nothing of a model that fails without checkpointing, and a model's own
    checkpoints only if its baseline has found any; with `perhaps` also if that is not known yet.
    """
    outcomes: dict[tuple[Case, int], str] = {}
    refusals = Refusals()
    has_own: set[Case] = set()
    for record in records:
        outcomes[record.case, record.round] = record.outcome
        if is_refusal(record):
            refusals.add(record)
        if finds_own(record):
            has_own.add(record.case)
    return tuple(
        trial
        for trial in plan
        if (trial.case, trial.round) not in outcomes
        and (trial.round == 1 or outcomes.get((trial.case, 1), "ok") == "ok")
        and not refusals.stop(trial.case)
        and (
            not trial.if_own
            or trial.case.baseline in has_own
            or (perhaps and (trial.case.baseline, trial.round) not in outcomes)
        )
    )


def finds_own(record: Record) -> bool:
    """Whether the record of a baseline says that the model itself calls checkpoints."""
    return any(note.code == HAS_OWN for note in record.notes) and record.case == record.case.baseline


def rows_of(plan: Iterable[Trial], records: Iterable[Record]) -> list[Case]:
    """Return the cases that a run has or will have a row of, in the order of the plan."""
    known = {record.case for record in records}
    has_own = {record.case for record in records if finds_own(record)}
    return list(
        dict.fromkeys(
            trial.case for trial in plan if not trial.if_own or trial.case in known or trial.case.baseline in has_own
        )
    )


def is_refusal(record: Record) -> bool:
    """Whether a baseline failed because of its model, so that nothing else of it can be run.

    A baseline that ran out of memory, crashed or timed out says nothing of the others, nor does one that was built.
    """
    return record.outcome in REFUSALS and record.built is None and _is_baseline(record)


class Refusals:
    """The baselines that were refused; a lookup takes no longer if there are many."""

    def __init__(self, *refusals: Record) -> None:
        self._cases: set[Case] = set()
        self._twins: set[Case] = set()  # twins of baselines that ran and failed: predictions would fail too
        for refusal in refusals:
            self.add(refusal)

    def add(self, refusal: Record) -> None:
        case = refusal.case
        self._cases.add(case)
        if refusal.outcome == "failed" and not (case.is_predicted or case.is_rehearsed):
            self._twins.add(case.twin)

    def stop(self, case: Case) -> bool:
        """Whether a case is not run because of a refusal: it is compared with the baseline, or predicts what failed."""
        if not self._cases:
            return False
        baseline = case.baseline
        return baseline in self._cases or (case.is_predicted and baseline.twin in self._twins)


def settled(records: Iterable[Record]) -> list[Record]:
    """Return the records that stay valid when a run goes on: the last of each trial.

    Trials that crashed or timed out are measured again, and so are those of a first round whose baseline did.
    """
    last = latest(records)
    lost = {record.case.twin for record in last if record.outcome in LOST and _is_baseline(record)}
    return [
        record
        for record in last
        if record.outcome not in LOST and (record.round > 1 or record.case.baseline.twin not in lost)
    ]


def _is_baseline(record: Record) -> bool:
    """Whether a record is the baseline's of a first round."""
    return record.round == 1 and record.case == record.case.baseline


def status(plan: Iterable[Trial], records: Iterable[Record]) -> str:
    """Return "complete", or "partial" if trials are owed."""
    return "partial" if owed(plan, records) else "complete"


def exit_code(records: Iterable[Record]) -> int:
    """Return the exit code of a run: 1 if a trial went wrong or nothing could be measured, else 0."""
    outcomes = {record.outcome for record in latest(records)}
    return int(bool(outcomes.intersection(FAILURES)) or "ok" not in outcomes)


def calibrations(records: Iterable[Record]) -> dict[Case, Calibration]:
    """Return the calibration from each measured baseline, by twin: `case.baseline.twin` of the cases that it is for."""
    by_twin: dict[Case, Calibration] = {}
    for record in records:
        seconds, hidden = record.readings.step_seconds, record.readings.hidden_bytes
        if hidden is not None:
            name = record.environment.device_name if record.environment else None
            step = median(seconds) if seconds else None
            by_twin.setdefault(record.case.twin, Calibration(hidden_bytes=hidden, device_name=name, step_seconds=step))
    return by_twin
