"""In which order a plan is run, wherever that is: what must be known first comes first. Knows nothing of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import msgspec

from profiler.analysis import progress
from profiler.analysis.calibration import calibrations
from profiler.case import Case, Trial
from profiler.record import Record

Known = dict[tuple[Case, int], Record]


def in_waves(
    run: Callable[[list[Trial]], Iterator[Record]], plan: Iterable[Trial], done: Iterable[Record] = ()
) -> Iterator[Record]:
    """Run what `done` does not hold yet, and yield each record as it comes.

    `run` gets one wave at a time, whose trials need nothing of each other: a round's baselines before the others of the
    first round, since those are verified against them, or predicted with what was read of them. A case whose first
    round is not ok has no further rounds.
    """
    found = {(record.case, record.round): record for record in done}
    for (_, _, is_predicted), wave in groupby(plan, key=_wave):
        known = calibrations(found.values()) if is_predicted else {}
        ready = [
            msgspec.structs.replace(
                trial,
                digests=trial.digests or _digests(trial.case, found),
                calibration=trial.calibration or known.get(trial.case.baseline.twin),
            )
            for trial in progress.owed(wave, found.values())
        ]
        for record in run(ready):
            found[record.case, record.round] = record
            yield record


def in_few_waves(plan: Iterable[Trial]) -> list[Trial]:
    """The plan by waves, each in its own order: for engines that run many trials at once."""
    return sorted(plan, key=lambda trial: (trial.round > 1, trial.case.is_predicted, trial.case != trial.case.baseline))


def _wave(trial: Trial) -> tuple[bool, bool, bool]:
    """The later rounds need nothing but the first one."""
    return trial.round == 1, trial.round == 1 and trial.case == trial.case.baseline, trial.case.is_predicted


def _digests(case: Case, found: Known) -> dict[str, str] | None:
    baseline = found.get((case.baseline, 1))
    return baseline.equality.digests if baseline and baseline.equality and baseline.outcome == "ok" else None
