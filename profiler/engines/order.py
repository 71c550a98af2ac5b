"""The order in which any engine runs a plan: dependencies come first; and which trials share a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import msgspec

from profiler.analysis import progress
from profiler.core import catalogue, schedule
from profiler.core.case import Case, Trial
from profiler.core.record import Record
from profiler.training import models

MOST_TIMED = 8  # strategies in a process: with more, steps are too far from the plain step to share its disturbances
Records = dict[tuple[Case, int], Record]


def in_waves(
    run: Callable[[list[Trial]], Iterator[Record]],
    plan: Iterable[Trial],
    done: Iterable[Record] = (),
    *,
    widely: bool = False,
) -> Iterator[Record]:
    """Run the trials that `done` does not hold yet, and yield each record as it comes.

    `run` gets one wave at a time, whose trials do not depend on each other. A round's baselines come before the other
    trials of the first round, which are verified against them or predicted with their readings, and before trials that
    are run only if a baseline finds something. A case whose first round is not ok has no further rounds. The waves
    follow the plan; `widely` makes as few as possible, for an engine that runs many trials at once.
    """
    records = {(record.case, record.round): record for record in done}
    waves = groupby(sorted(plan, key=_wave), key=_wave) if widely else groupby(plan, key=_close_wave)
    for _, wave in waves:
        for record in run(informed(progress.owed(wave, records.values()), records)):
            records[record.case, record.round] = record
            yield record


def grouped(trials: Iterable[Trial]) -> Iterator[tuple[str, list[Trial]]]:
    """Yield groups of adjacent trials that may share a process, with how: "" for one alone, or else by one word.

    Predictions ("predicted") and rehearsals ("rehearsed") of one baseline share a process, unless they run the user's
    code or are of several ranks. So do measured strategies of one baseline and round ("timed") if only their time is
    read: on one model, they share the steps without a strategy.
    """
    for (kind, _), several in groupby(trials, key=_sharing):
        group = list(several)
        most = MOST_TIMED if kind == "timed" else len(group)
        for at in range(0, len(group), most):
            yield kind, group[at : at + most]


def _sharing(trial: Trial) -> tuple[str, object]:
    """Return how a trial shares its process, and a key that all trials in that process have in common."""
    case = trial.case
    if (case.is_predicted or case.is_rehearsed) and not (
        case.ranks or catalogue.is_code(case.model.name, models.TABLE)
    ):
        return "predicted" if case.is_predicted else "rehearsed", case.baseline
    if schedule.is_time_alone(trial):
        return "timed", (case.baseline, trial.round)
    return "", trial


def informed(trials: Iterable[Trial], records: Records) -> list[Trial]:
    """Add to trials what is known of their baselines: digests to verify against, whether they ran, the calibration."""
    trials = list(trials)
    is_predicted = any(trial.case.is_predicted for trial in trials)
    known_calibrations = progress.calibrations(records.values()) if is_predicted else {}
    return [
        msgspec.structs.replace(
            trial,
            digests=trial.digests or _digests(trial.case, records),
            is_paired=trial.is_paired and _fits(trial.case.baseline, records),
            calibration=trial.calibration
            or (known_calibrations.get(trial.case.baseline.twin) if trial.case.is_predicted else None),
        )
        for trial in trials
    ]


def _wave(trial: Trial) -> tuple[bool, bool, bool]:
    """Return the key of a trial's wave; waves sort so that what others need comes first."""
    is_later = trial.round > 1  # and needs to know that the first round was ok
    waits_for_baseline = (not is_later and trial.case != trial.case.baseline) or bool(trial.if_own)
    return is_later, trial.case.is_predicted, waits_for_baseline


def _close_wave(trial: Trial) -> tuple[object, ...]:
    """Return the key of a wave that keeps predictions of one baseline together, so that they can share a process."""
    is_later, is_predicted, waits = _wave(trial)
    if is_predicted or trial.case.is_rehearsed:
        return is_later, is_predicted, trial.case.baseline, bool(trial.if_own)
    return is_later, False, waits


def _digests(case: Case, records: Records) -> dict[str, str] | None:
    baseline = records.get((case.baseline, 1))
    return baseline.equality.digests if baseline and baseline.equality and baseline.outcome == "ok" else None


def _fits(baseline: Case, records: Records) -> bool:
    """Whether the step without checkpointing can be run; true if that is not known yet."""
    record = records.get((baseline, 1))
    return record is None or record.outcome == "ok"
