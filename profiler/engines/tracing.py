"""Functions that run in a child and measure nothing: predictions, explained steps, reports of the devices here."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from profiler.core.case import Case, Trial, decode
from profiler.core.devices import parse
from profiler.core.record import Environment
from profiler.engines.replies import answer, run_each, tell
from profiler.measuring import devices as measured_devices
from profiler.measuring.devices import environment, open_device
from profiler.predicting import late_compiler, prediction
from profiler.predicting.prediction import follow_case, predict
from profiler.training.inspect_blocks import describe


def run_trials(request: str, channel: int) -> None:
    """Predict the trials in `request`, each when it is asked for."""
    late_compiler.install()
    run_each(request, channel, by=predict)


def outline(request: str, channel: int) -> None:
    """Send a summary of the model of the case in `request`: its blocks, or why it has none."""
    case: Case = decode(request, Case)
    _answer(channel, "outline", lambda: describe(case))


def follow(request: str, channel: int) -> None:
    """Send the traced step of the trial in `request`, or why it cannot be traced."""
    trial: Trial = decode(request, Trial)
    _answer(channel, "followed", lambda: follow_case(trial))


def follow_with_choices(request: str, channel: int) -> None:
    """Do as `follow`, with the bytes that checkpointing other blocks of the model would take."""
    trial: Trial = decode(request, Trial)
    _answer(channel, "followed", lambda: follow_case(trial, with_choices=True))


def choices(request: str, channel: int) -> None:
    """Send the bytes with the blocks of the case in `request`, and with other blocks, or why they are not known."""
    case: Case = decode(request, Case)
    _answer(channel, "choices", lambda: prediction.choices(case))


def _answer(channel: int, key: str, work: Callable[[], object]) -> None:
    late_compiler.install()
    answer(channel, key, work)


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
