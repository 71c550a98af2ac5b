"""Functions that run in a child that measures: trials, also of several ranks, rehearsed steps, stages of a model."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial

import msgspec

from profiler.core.case import Case, Trial, decode, encode
from profiler.core.record import Note, Record
from profiler.core.trace_data import Followed
from profiler.engines import rehearsed_rows
from profiler.engines.error_record import error_record, without_readings
from profiler.engines.replies import answer, asked, run_each, send, started, tell
from profiler.engines.tracing import survey as survey
from profiler.measuring.ranks import ALONE, FirstRank, Lost, Ranks, launch
from profiler.measuring.trial import measure, measure_together
from profiler.predicting import device_trace, late_compiler
from profiler.predicting.prediction import predict
from profiler.predicting.staging.stages import stages
from profiler.rehearsal import device as rehearsed_device
from profiler.scripts.inject import gcprof_replaced

LONGEST_DETAIL = 1000  # characters of a rank's last message


def run_trials(request: str, channel: int) -> None:
    """Measure, rehearse or predict the trials in `request`, each when it is asked for."""

    def by(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
        if trial.case.is_predicted:
            late_compiler.install()
            return predict(trial, on_pass=on_pass)
        if trial.case.is_rehearsed:
            return _rehearse(trial, on_pass=on_pass)
        return _by_ranks(trial, on_pass=on_pass) if trial.case.ranks else measure(trial, on_pass=on_pass)

    run_each(request, channel, by=by)


def run_together(request: str, channel: int) -> None:
    """Time several trials on one model, and send their records, each when it is asked for."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    start_seconds = time.monotonic() - (asked(channel) or 0.0)
    try:
        records = measure_together(trials, on_pass=lambda stage: tell(channel, {"stage": stage}))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        records = [error_record(trial, error) for trial in trials]
    send(channel, started(records[0], start_seconds))
    for record in records[1:]:
        if asked(channel) is None:
            return
        send(channel, started(record, 0.0))


def run_rehearsed(request: str, channel: int) -> None:
    """Rehearse trials of one baseline in forks of this process; send their records, each when it is asked for."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    since = asked(channel)
    late_compiler.install()
    told = _open(trials[0].case.device)
    rehearsed_rows.run(trials, channel, since, by=partial(_rehearse, told=told))


def follow_rehearsed(request: str, channel: int) -> None:
    """Send a rehearsed step of the trial in `request`, as its GPU's allocator recorded it, or why there is none."""
    _follow(request, channel, with_choices=False)


def follow_rehearsed_with_choices(request: str, channel: int) -> None:
    """Do as `follow_rehearsed`, with the bytes that checkpointing other blocks of the model would take."""
    _follow(request, channel, with_choices=True)


def _follow(request: str, channel: int, *, with_choices: bool) -> None:
    trial: Trial = decode(request, Trial)

    def followed() -> Followed:
        told = _open(trial.case.device)
        step = device_trace.follow_case(trial, with_choices=with_choices)
        return msgspec.structs.replace(step, remarks=(*step.remarks, *told))

    late_compiler.install()
    answer(channel, "followed", followed)


def stage(request: str, channel: int) -> None:
    """Send each step that is timed, with a limit of its own, then the trial's chain of stages, or why there is none."""
    trial: Trial = decode(request, Trial)
    late_compiler.install()

    def on_step(step: str) -> None:
        tell(channel, {"stage": f"timing {step.partition(',')[0]}", "step": step})

    answer(channel, "chain", lambda: stages(trial, on_step=on_step))


def stage_rehearsed(request: str, channel: int) -> None:
    """Do as `stage` for a rehearsed case, on the hollow device of its GPU."""
    _open(decode(request, Trial).case.device)
    stage(request, channel)


def choices_rehearsed(request: str, channel: int) -> None:
    """Send the bytes with the blocks of the rehearsed case in `request`, and with other blocks."""
    case: Case = decode(request, Case)
    _open(case.device)
    late_compiler.install()
    answer(channel, "choices", lambda: device_trace.choices(case))


def _open(device: str) -> list[str]:
    """Make this process see the hollow GPU; return what is told as the step runs, each once."""
    rehearsed_device.choose(device)
    told: list[str] = []
    gcprof_replaced.begin(lambda text: None if text in told else told.append(text))
    return told


def _rehearse(trial: Trial, *, on_pass: Callable[[str], None], told: list[str] | None = None) -> Record:
    """Measure the trial on the hollow device of the GPU that it names; of several ranks, only the first.

    `told` is what `_open` returned, where it has been called.
    """
    if told is None:
        late_compiler.install()
        told = _open(trial.case.device)
    group = FirstRank(trial.case.num_ranks) if trial.case.ranks else ALONE
    record = measure(trial, on_pass=on_pass, group=group)
    if told:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP018", text="; ".join(told))))
    said = rehearsed_device.convolutions()
    if not said:
        return record
    notes = (
        msgspec.structs.replace(note, text=f"{note.text}; {said}") if note.code == "GCP039" else note
        for note in record.notes
    )
    return msgspec.structs.replace(record, notes=tuple(notes))


def _by_ranks(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
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
    signals = {known_signal.value: known_signal.name for known_signal in signal.Signals}
    name = signals.get(-lost.status, f"signal {-lost.status}")
    likely = ": possibly out of host memory" if name == "SIGKILL" else ""
    return without_readings(trial, "crashed", f"rank {lost.rank} was killed by {name}{likely}")
