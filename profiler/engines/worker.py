"""Functions that run in a child and answer on its channel, each message a line of JSON: records, traces, devices.

A trial is run by the function of its kind in HOW, which is imported when it is needed: a child that only predicts
imports nothing that measures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec
import torch

from profiler.core.case import Case, Trial, decode, encode
from profiler.core.devices import parse
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.optional_deps import load_function
from profiler.core.record import Environment, Record
from profiler.core.secret_filter import hide
from profiler.core.user_code import exited
from profiler.engines.error_record import absent_library, error_detail, error_record, user_traceback
from profiler.measuring import devices as measured_devices
from profiler.measuring.devices import environment, open_device
from profiler.predicting import prediction
from profiler.training.inspect_blocks import describe

HOW = {
    "predicted": "profiler.predicting.prediction:predict",
    "rehearsed": "profiler.engines.rehearsed:rehearse",
    "of ranks": "profiler.engines.measured:measure_ranks",
    "measured": "profiler.measuring.trial:measure",
}


def run_trials(request: str, channel: int) -> None:
    """Measure, rehearse or predict the trials in `request`, each when it is asked for."""
    run_each(request, channel, by=_run)


def _run(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    case = trial.case
    kind = "predicted" if case.is_predicted else "rehearsed" if case.is_rehearsed else "measured"
    run: Callable[..., Record] = load_function(HOW["of ranks" if kind == "measured" and case.ranks else kind])
    return run(trial, on_pass=on_pass)


def run_each(request: str, channel: int, *, by: Callable[..., Record]) -> None:
    """Run the trials in `request` one after another, each when it is asked for; send every stage, then the record."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    for trial in trials:
        if (since := asked(channel)) is None:
            return
        start_seconds = time.monotonic() - since
        record = attempt(trial, on_pass=lambda stage: tell(channel, {"stage": stage}), by=by)
        send(channel, record, start_seconds)


def asked(channel: int) -> float | None:
    """Wait until a result is asked for; return when that was, by the monotonic clock, or None if nobody asks."""
    word = os.read(channel, 64)
    return float(word) if word else None


def attempt(trial: Trial, *, on_pass: Callable[[str], None], by: Callable[..., Record]) -> Record:
    """Return the trial's record; an error that the model raises becomes the outcome of this trial."""
    try:
        return by(trial, on_pass=on_pass)
    except SystemExit as error:
        return error_record(trial, exited(error))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        return error_record(trial, error)


def send(channel: int, record: Record, start_seconds: float) -> None:
    """Send a record as the line that is stored, after flushing all that its trial printed.

    `start_seconds` are those from the request to the beginning of the trial.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    tell(channel, msgspec.structs.replace(record, stage_seconds={"start": start_seconds, **record.stage_seconds}))


def tell(channel: int, message: object) -> None:
    """Write one whole line of JSON to the channel."""
    rest = memoryview(encode(message) + b"\n")
    while rest:
        rest = rest[os.write(channel, rest) :]


def answer(channel: int, key: str, work: Callable[[], object]) -> None:
    """Send the result of `work` under the key, or why it was refused or failed."""
    try:
        tell(channel, {key: work()})
    except (Invalid, Unsupported, UserError) as error:
        tell(channel, {"refused": hide(str(error))})
    except SystemExit as error:
        tell(channel, {"failed": error_detail(exited(error))})
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        if absent := absent_library(error):
            tell(channel, {"refused": absent})
            return
        print(user_traceback(error), file=sys.stderr, end="")
        tell(channel, {"failed": error_detail(error)})


def outline(request: str, channel: int) -> None:
    """Send a summary of the model of the case in `request`: its blocks, or why it has none."""
    case: Case = decode(request, Case)
    answer(channel, "outline", lambda: describe(case))


def follow(request: str, channel: int) -> None:
    """Send the traced step of the trial in `request`, or why it cannot be traced."""
    trial: Trial = decode(request, Trial)
    answer(channel, "followed", lambda: prediction.follow_case(trial))


def follow_with_choices(request: str, channel: int) -> None:
    """Do as `follow`, with the bytes that checkpointing other blocks of the model would take."""
    trial: Trial = decode(request, Trial)
    answer(channel, "followed", lambda: prediction.follow_case(trial, with_choices=True))


def choices(request: str, channel: int) -> None:
    """Send the bytes with the blocks of the case in `request`, and with other blocks, or why they are not known."""
    case: Case = decode(request, Case)
    answer(channel, "choices", lambda: prediction.choices(case))


def survey(request: str, channel: int) -> None:
    """Send the devices that torch can use here, the CPU first, and the free bytes of each."""
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
        except RuntimeError as error:  # a device that is broken or taken cannot be measured
            print(f"{name}: {error}", file=sys.stderr)
    tell(channel, {"devices": devices, "free": free})


def free_bytes(request: str, channel: int) -> None:
    """Send the free bytes of the device that `request` names."""
    tell(channel, {"free": open_device(request).free_bytes()})


def compute(request: str, channel: int) -> None:
    """Send what the device that `request` names computes wrongly; None if its arithmetic is right."""
    open_device(request)
    tell(channel, {"wrong": measured_devices.wrong_arithmetic(parse(request).torch_device)})
