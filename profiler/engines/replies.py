"""Sends the messages of a child on its channel, each as one line of JSON."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec

from profiler.core.case import Trial, decode, encode
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.record import Record
from profiler.core.secret_filter import hide
from profiler.core.user_code import exited
from profiler.engines.error_record import absent_library, error_detail, error_record, user_traceback


def tell(channel: int, message: object) -> None:
    """Write one whole line of JSON to the channel."""
    _write(channel, encode(message))


def _write(channel: int, line: bytes) -> None:
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[os.write(channel, rest) :]


def send(channel: int, record: Record) -> None:
    """Send the record of a trial as the line that is stored, after flushing all that the trial printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    _write(channel, encode(record))


def asked(channel: int) -> float | None:
    """Wait until a result is asked for; return when that was, by the monotonic clock, or None if nobody asks."""
    word = os.read(channel, 64)
    return float(word) if word else None


def run_each(request: str, channel: int, *, by: Callable[..., Record]) -> None:
    """Run the trials in `request` one after another, each when it is asked for; send every stage, then the record."""
    trials: tuple[Trial, ...] = decode(request, tuple[Trial, ...])
    for trial in trials:
        if (since := asked(channel)) is None:
            return
        start_seconds = time.monotonic() - since
        record = attempt(trial, on_pass=lambda stage: tell(channel, {"stage": stage}), by=by)
        send(channel, started(record, start_seconds))


def started(record: Record, start_seconds: float) -> Record:
    """Return the record with the seconds from the request to the beginning of its trial."""
    return msgspec.structs.replace(record, stage_seconds={"start": start_seconds, **record.stage_seconds})


def attempt(trial: Trial, *, on_pass: Callable[[str], None], by: Callable[..., Record]) -> Record:
    """Return the trial's record; an error that the model raises becomes the outcome of this trial."""
    try:
        return by(trial, on_pass=on_pass)
    except SystemExit as error:
        return error_record(trial, exited(error))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        return error_record(trial, error)


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
