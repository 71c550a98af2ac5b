"""Functions that run in a child that only traces: predictions and explained steps. Imports nothing that measures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from profiler.core.case import Case, Trial, decode
from profiler.engines.replies import answer, attempt, tell, tell_record
from profiler.predicting import late_compiler, prediction
from profiler.predicting.prediction import follow_case, predict
from profiler.training.inspect_blocks import describe


def run_trial(request: str, channel: int) -> None:
    """Predict the trial in `request`; send every stage as it begins, then the record."""
    _run(decode(request, Trial), channel)


def run_trials(request: str, channel: int) -> None:
    """Do as `run_trial` for several trials; the next one begins when a byte arrives on the channel."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    for place, trial in enumerate(trials):
        if place and not os.read(channel, 1):
            return
        _run(trial, channel)


def _run(trial: Trial, channel: int) -> None:
    tell(channel, {"stage": "start", "at": time.monotonic()})
    late_compiler.install()
    on_pass = partial(_tell_stage, channel)
    tell_record(channel, attempt(trial, on_pass=on_pass, by=predict))


def _tell_stage(channel: int, stage: str) -> None:
    tell(channel, {"stage": stage})


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
