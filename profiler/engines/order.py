"""The order in which a plan is run on any engine: what others need comes first; and which trials share a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import msgspec

from profiler.analysis import progress
from profiler.core import catalogue, schedule
from profiler.core.case import Case, Trial
from profiler.core.record import Record
from profiler.training import models

MOST_TIMED = 8  # strategies: of more, a step is too far from that without a strategy to be disturbed alike
Records = dict[tuple[Case, int], Record]


def in_waves(
    run: Callable[[list[Trial]], Iterator[Record]],
    plan: Iterable[Trial],
    done: Iterable[Record] = (),
    *,
    widely: bool = False,
) -> Iterator[Record]:
    """Run what `done` does not hold yet, and yield each record as it comes.

    `run` gets one wave at a time, whose trials need nothing of each other: a round's baselines before the others of the
    first round, since those are verified against them, or predicted with what was read of them; and before what is run
    only where they find something. A case whose first round is not ok has no further rounds. The waves follow the plan;
    `widely` makes as few as can be, for an engine that runs many trials at once.
    """
    records = {(record.case, record.round): record for record in done}
    waves = groupby(sorted(plan, key=_wave), key=_wave) if widely else groupby(plan, key=_close_wave)
    for (_, is_predicted, *_), wave in waves:
        ready = informed(progress.owed(wave, records.values()), records, is_predicted=bool(is_predicted))
        for record in run(ready):
            records[record.case, record.round] = record
            yield record


def grouped(trials: Iterable[Trial]) -> Iterator[tuple[str, list[Trial]]]:
    """Neighbours that may share a process, with how: "predicted", "timed", or "" for one by itself.

    Predictions of one baseline do, but where users' code runs, and measured strategies of one baseline and round of
    which only the time is read: on one model, their steps have those without a strategy in common.
    """
    for (kind, _), several in groupby(trials, key=_sharing):
        group = list(several)
        most = MOST_TIMED if kind == "timed" else len(group)
        for at in range(0, len(group), most):
            yield kind, group[at : at + most]


def _sharing(trial: Trial) -> tuple[str, object]:
    """How a trial shares its process, and what is the same of all that may be in it."""
    case = trial.case
    if case.is_predicted and not catalogue.is_code(case.model.name, models.TABLE):
        return "predicted", case.baseline
    if schedule.is_time_alone(trial):
        return "timed", (case.baseline, trial.round)
    return "", trial


def informed(trials: Iterable[Trial], records: Records, *, is_predicted: bool) -> list[Trial]:
    """Adds to trials what is known of their baselines: digests to verify against, whether they ran, the calibration."""
    known_calibrations = progress.calibrations(records.values()) if is_predicted else {}
    return [
        msgspec.structs.replace(
            trial,
            digests=trial.digests or _digests(trial.case, records),
            is_paired=trial.is_paired and _fits(trial.case.baseline, records),
            calibration=trial.calibration or known_calibrations.get(trial.case.baseline.twin),
        )
        for trial in trials
    ]


def _wave(trial: Trial) -> tuple[bool, bool, bool]:
    """Returns the key of a trial's wave; waves sort so that what others need comes first."""
    is_later = trial.round > 1  # and needs to know that the first round was ok
    waits_for_baseline = (not is_later and trial.case != trial.case.baseline) or bool(trial.if_own)
    return is_later, trial.case.is_predicted, waits_for_baseline


def _close_wave(trial: Trial) -> tuple[object, ...]:
    """As `_wave`, with the predictions of one baseline together: they run one after the other, on what it may leave."""
    is_later, is_predicted, waits = _wave(trial)
    return (
        (is_later, is_predicted, trial.case.baseline, bool(trial.if_own)) if is_predicted else (is_later, False, waits)
    )


def _digests(case: Case, records: Records) -> dict[str, str] | None:
    baseline = records.get((case.baseline, 1))
    return baseline.equality.digests if baseline and baseline.equality and baseline.outcome == "ok" else None


def _fits(baseline: Case, records: Records) -> bool:
    """Whether the step without checkpointing can be run, as far as is known."""
    record = records.get((baseline, 1))
    return record is None or record.outcome == "ok"
