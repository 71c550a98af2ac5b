"""Runs the trials that a run folder owes through an engine: each record is stored before it is shown."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence

import msgspec

from profiler.analysis import progress
from profiler.analysis.timing_doubts import other_processes
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines import Engine
from profiler.runs import store
from profiler.runs.store import Run, Writer
from profiler.workflows import SILENT, Interrupted, Screen

UNTOLD = "GCP031"  # the note that a device reports nothing about itself


def follow(
    engine: Engine,
    run: Run,
    screen: Screen = SILENT,
    *,
    data_directory: str | None = None,
    exclusive: bool = False,
    ready: Sequence[Record] = (),
) -> tuple[int, Run]:
    """Run what a run still owes, and show each record; return an exit code, 0 if nothing ended it early, and the run.

    What ends it early is reported: an interrupt or a UserError.
    """
    records = [*run.records]
    code = 0

    def warn(text: str) -> None:
        screen.say(f"warning: {text}")

    try:
        engine.at_work = screen.at_work
        with screen.watch([trial.case for trial in run.manifest.plan]) as show:
            owed = run_owed(engine, run, data_directory=data_directory, exclusive=exclusive, ready=ready, warn=warn)
            for record, left in owed:
                records.append(record)
                show(record, left, run.folder / "logs" / f"{store.log_name(record.case, record.round)}.log")
    except Interrupted as interrupted:
        screen.say("interrupted; what was printed is safe")
        code = interrupted.exit_code
    except UserError as error:
        screen.say(f"gcprof: {error.message}")
        screen.say(f"hint: {error.hint}")
        code = error.exit_code
    return code, store.of_records(run.folder, run.manifest, records)


def run_owed(
    engine: Engine,
    run: Run,
    *,
    data_directory: str | None = None,
    exclusive: bool = False,
    ready: Sequence[Record] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> Generator[tuple[Record, int], None, None]:
    """Run what a run still owes; yield each record once it is on disk, and how many are left.

    `ready` are records of trials in the plan that were measured before; they come first. Trials that crashed or took
    too long are owed again. `warn` is called with what does no harm yet. Raises UserError if the folder cannot be
    written, another process writes to it or has since it was read; and (exit code 3) if the device must be exclusive,
    and others used it or may have.
    """
    folder, plan = run.folder, run.manifest.plan
    writer = Writer(folder)
    try:
        if not writer.is_locked:
            warn(f"locks do not work in '{folder}': make sure that no other gcprof writes there")
        if writer.num_bytes != run.num_bytes:
            raise UserError(f"another gcprof has written to '{folder}' meanwhile", hint="give the command again")
        done = progress.settled(run.records)
        owed = progress.owed(plan, done)
        left = len(owed)
        later = Counter(trial.case for trial in owed if trial.round > 1)
        engine.logs = folder / "logs"
        placed = (msgspec.structs.replace(trial, data_directory=data_directory) for trial in plan)
        waiting = [trial for trial in plan if trial.if_own and trial not in owed]
        for record in ready:
            writer.append(record)
            left -= 1
            yield record, left
        done = [*done, *ready]
        for record in engine.run(placed, done):
            writer.append(record)
            if progress.finds_own(record):
                joining = [trial for trial in waiting if trial.case.baseline == record.case]
                waiting = [trial for trial in waiting if trial not in joining]
                left += len(joining)
                later.update(trial.case for trial in joining if trial.round > 1)
            left -= 1
            if progress.is_refusal(record):  # others than its own are not run
                left -= sum(progress.stops(record, trial.case) for trial in owed) - 1
            elif record.round == 1 and record.outcome != "ok":
                left -= later[record.case]  # later rounds
            yield record, left
            if exclusive:
                _refuse_shared(record)
    finally:
        writer.close()


def _refuse_shared(record: Record) -> None:
    conditions = record.readings.conditions
    sharing, _ = other_processes([conditions] if conditions else [])
    unknown = next((note.text for note in record.notes if note.code == UNTOLD), None)
    if sharing or unknown:
        hint = "go on with --resume, once the device is free" if sharing else "go on with --resume, without --exclusive"
        raise UserError(f"--exclusive error: {sharing or unknown}", hint=hint, exit_code=3)
