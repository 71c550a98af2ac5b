"""What a child that measures does besides a trial alone: several strategies in turn, several ranks, timed stages."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from profiler.core.case import Trial, decode, encode
from profiler.core.record import Record
from profiler.engines import killer
from profiler.engines.worker import answer, asked, error_record, send, tell, without_readings
from profiler.measuring.passes import measure_together
from profiler.measuring.ranks import Lost, Ranks, launch
from profiler.measuring.trial import measure
from profiler.predicting.stages import stages

LONGEST_DETAIL = 1000  # characters of a rank's last message


def run_together(request: str, channel: int) -> None:
    """Time several trials on one model, and send their records, each when it is asked for."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    start_seconds = time.monotonic() - (asked(channel) or 0.0)
    try:
        records = measure_together(trials, on_pass=lambda stage: tell(channel, {"stage": stage}))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        records = [error_record(trial, error) for trial in trials]
    send(channel, records[0], start_seconds)
    for record in records[1:]:
        if asked(channel) is None:
            return
        send(channel, record, 0.0)


def stage(request: str, channel: int) -> None:
    """Send each step that is timed, with a limit of its own, then the trial's chain of stages, or why there is none."""
    trial: Trial = decode(request, Trial)

    def on_step(step: str) -> None:
        tell(channel, {"stage": f"timing {step.partition(',')[0]}", "step": step})

    answer(channel, "chain", lambda: stages(trial, on_step=on_step))


def measure_ranks(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    """Run the trial in one process for each rank; the first that fails decides its outcome."""

    def work(group: Ranks) -> bytes:
        first = group.rank == 0
        record = measure(trial, on_pass=on_pass if first else lambda stage: None, group=group)
        return encode(record) if first else b""

    def failed(error: Exception, rank: int) -> bytes:
        record = error_record(trial, error)
        named = record.detail if record.outcome == "skipped" else f"rank {rank}: {record.detail}"
        return encode(msgspec.structs.replace(record, detail=str(named)[:LONGEST_DETAIL]))

    try:
        text = launch(trial.case.num_ranks, trial.case.device, work, failed=failed)
    except Lost as lost:
        if not lost.word or lost.status < 0:
            return _died(trial, lost)
        text = lost.word
    record: Record = decode(text, Record)
    return record


def _died(trial: Trial, lost: Lost) -> Record:
    """Return the record of a trial whose rank was killed, or ended without a result."""
    if lost.status >= 0:
        return without_readings(trial, "failed", f"rank {lost.rank} ended without a result (exit code {lost.status})")
    return without_readings(trial, "crashed", f"rank {lost.rank} was killed by {killer(lost.status)}")
