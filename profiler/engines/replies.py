"""Sends the messages of a child on its channel, each as one line of JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from profiler.core.case import Trial, encode
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.record import Record
from profiler.core.secret_filter import hide
from profiler.core.user_code import exited
from profiler.engines.error_record import absent_library, error_detail, error_record, user_traceback


def tell(channel: int, message: object) -> None:
    """Write one whole line of JSON to the channel."""
    rest = memoryview(encode(message) + b"\n")
    while rest:
        rest = rest[os.write(channel, rest) :]


def tell_record(channel: int, record: Record) -> None:
    """Send the record of a trial, after flushing all that it printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    tell(channel, {"record": record})


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
