"""What a child does when it is asked: a trial, by ranks too, a survey of devices, a trace, the stages of a model."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from profiler.core.case import Case, Trial, decode, encode
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.gpu_kinds import visible
from profiler.core.record import Environment, Record
from profiler.core.rehearsed_gpu import of_device
from profiler.core.secret_filter import hide
from profiler.core.trace_data import Followed
from profiler.core.units import bytes_text
from profiler.engines.error_record import absent_library, error_detail, error_record, user_traceback, without_readings
from profiler.measuring import devices, measure, recorded_step
from profiler.measuring.devices import environment, open_device
from profiler.measuring.ranks import ALONE, FirstRank, Lost, Ranks, launch
from profiler.measuring.together import measure_together
from profiler.predicting import late_compiler, prediction
from profiler.predicting.prediction import follow_case, predict
from profiler.predicting.shared_traces import SharedTraces
from profiler.predicting.staging.stages import stages
from profiler.rehearsal import device as rehearsed_device
from profiler.training.inspect_blocks import describe

SHARING = 3  # rows that pay for a trace that others are composed of
LONGEST_DETAIL = 1000  # characters of a rank's last word


def run_trial(request: str, channel: int) -> None:
    """Measure the trial in `request`; tell every stage as it begins, then the record, each as one line of JSON."""
    trial: Trial = decode(request, Trial)
    _run(trial, channel)


def run_trials(request: str, channel: int) -> None:
    """As `run_trial` does with each of several trials; the next begins when a byte on the channel asks for it."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    shared = SharedTraces() if len(trials) >= SHARING else None
    for place, trial in enumerate(trials):
        if place and not os.read(channel, 1):
            return
        _run(trial, channel, shared)


def run_together(request: str, channel: int) -> None:
    """Time several trials on one model, and tell their records; the next one when a byte on the channel asks for it."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    tell(channel, {"stage": "start", "at": time.monotonic()})
    try:
        records = measure_together(trials, on_pass=lambda stage: tell(channel, {"stage": stage}))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        records = [error_record(trial, error) for trial in trials]
    sys.stdout.flush()  # before the records: what it printed is read with the first
    sys.stderr.flush()
    for place, record in enumerate(records):
        if place and not os.read(channel, 1):
            return
        tell(channel, {"record": record})


def _run(trial: Trial, channel: int, shared: SharedTraces | None = None) -> None:
    tell(channel, {"stage": "start", "at": time.monotonic()})
    if trial.case.is_predicted:
        late_compiler.install()
    if trial.case.ranks and not trial.case.is_predicted and not trial.case.is_rehearsed:
        record = _by_ranks(trial, channel)
    else:
        foresee = partial(predict, shared=shared)
        by = foresee if trial.case.is_predicted else _rehearse if trial.case.is_rehearsed else measure
        record = attempt(trial, on_pass=lambda stage: tell(channel, {"stage": stage}), by=by)
    sys.stdout.flush()  # before the record: what it printed is read with it
    sys.stderr.flush()
    tell(channel, {"record": record})


def survey(request: str, channel: int) -> None:
    """Tell the devices that torch can use here: the CPU first."""
    names = [
        "cpu",
        *(f"cuda:{index}" for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)),
    ]
    devices: dict[str, Environment] = {}
    free: dict[str, int | None] = {}
    for name in names:
        try:
            device = open_device(name)
            devices[name], free[name] = environment(device), device.free_bytes()
        except RuntimeError as error:  # a device that is broken, or taken, is not one that can be measured
            print(f"{name}: {error}", file=sys.stderr)
    tell(channel, {"devices": devices, "free": free})


def free_bytes(request: str, channel: int) -> None:
    """Tell how much of the memory of the device called `request` nobody holds."""
    tell(channel, {"free": open_device(request).free_bytes()})


def compute(request: str, channel: int) -> None:
    """Tell what the device called `request` gets wrong of arithmetic; None where it computes."""
    open_device(request)
    tell(channel, {"wrong": devices.wrong_arithmetic(visible(request))})


def outline(request: str, channel: int) -> None:
    """Tell the outline of the case in `request`: its blocks, or why they cannot be had."""
    case: Case = decode(request, Case)
    _answer(channel, "outline", lambda: describe(case))


def follow(request: str, channel: int) -> None:
    """Tell the traced step of the trial in `request`, or why it cannot be followed."""
    trial: Trial = decode(request, Trial)
    _answer(channel, "followed", lambda: follow_case(trial))


def follow_with_choices(request: str, channel: int) -> None:
    """As `follow`, with what other blocks of the model would come to."""
    trial: Trial = decode(request, Trial)
    _answer(channel, "followed", lambda: follow_case(trial, with_choices=True))


def choices(request: str, channel: int) -> None:
    """Tell what the blocks of the case in `request`, and others of its model, come to, or why that is not known."""
    case: Case = decode(request, Case)
    _answer(channel, "choices", lambda: prediction.choices(case))


def follow_rehearsed(request: str, channel: int) -> None:
    """Tell a step of the trial in `request` as the allocator of the GPU that it names recorded it, or why not."""
    trial: Trial = decode(request, Trial)

    def record() -> Followed:
        rehearsed_device.choose(trial.case.device)
        return recorded_step.follow_case(trial)

    _answer(channel, "followed", record)


def stage(request: str, channel: int) -> None:
    """Tell the chain of stages of the trial in `request`, or why it cannot be had; before, each step that is timed."""
    trial: Trial = decode(request, Trial)
    _answer(
        channel, "chain", lambda: stages(trial, on_step=lambda step: tell(channel, {"stage": "start", "step": step}))
    )


def _answer(channel: int, key: str, work: Callable[[], object]) -> None:
    late_compiler.install()
    try:
        tell(channel, {key: work()})
    except (Invalid, Unsupported, UserError) as error:
        tell(channel, {"refused": hide(str(error))})
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        if absent := absent_library(error):
            tell(channel, {"refused": absent})
            return
        print(user_traceback(error), file=sys.stderr, end="")
        tell(channel, {"failed": error_detail(error)})


def attempt(trial: Trial, *, on_pass: Callable[[str], None], by: Callable[..., Record] = measure) -> Record:
    """Returns the trial's record: what the model raises is the outcome of this trial only."""
    try:
        return by(trial, on_pass=on_pass)
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        return error_record(trial, error)


def _rehearse(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    """Measures the trial on the GPU that it names and that is not there; of several ranks, the first alone."""
    rehearsed_device.choose(trial.case.device)
    group = FirstRank(trial.case.num_ranks) if trial.case.ranks else ALONE
    record = measure(trial, on_pass=on_pass, group=group)
    given = of_device(trial.case.device).cudnn_workspace_bytes
    if not given or rehearsed_device.has_convolved():
        return record
    text = f"; cuDNN ran no convolution, so that its workspace of {bytes_text(given)} has no effect"
    notes = (
        msgspec.structs.replace(note, text=note.text + text) if note.code == "GCP039" else note for note in record.notes
    )
    return msgspec.structs.replace(record, notes=tuple(notes))


def _by_ranks(trial: Trial, channel: int) -> Record:
    """Runs the trial in one process for each rank; the first that fails is its outcome."""

    def work(group: Ranks) -> bytes:
        first = group.rank == 0
        record = measure(trial, on_pass=lambda stage: tell(channel, {"stage": stage}) if first else None, group=group)
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
    """Returns the record of a trial whose rank was killed, or ended without a result."""
    if lost.status >= 0:
        return without_readings(trial, "failed", f"rank {lost.rank} ended without a result (exit code {lost.status})")
    signals = {known_signal.value: known_signal.name for known_signal in signal.Signals}
    name = signals.get(-lost.status, f"signal {-lost.status}")
    likely = ": possibly out of host memory" if name == "SIGKILL" else ""
    return without_readings(trial, "crashed", f"rank {lost.rank} was killed by {name}{likely}")


def tell(channel: int, message: object) -> None:
    """Write one whole line of JSON to the channel."""
    rest = memoryview(encode(message) + b"\n")
    while rest:
        rest = rest[os.write(channel, rest) :]
