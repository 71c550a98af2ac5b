"""Makes the record of a trial from what its child sent or, if it sent none, from how the child ended."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from profiler import __version__
from profiler.analysis.sanity import impossible
from profiler.core.case import Trial, decode
from profiler.core.record import SCHEMA, Environment, Outcome, Record
from profiler.engines.child import Child, Ended


def trial_record(trial: Trial, child: Child, ended: Ended, requested_at: float) -> Record:
    """Return the record that the worker sent if it is possible, else a record of how it ended or what was wrong."""
    sent = [message["record"] for message in child.messages if "record" in message]
    if not sent:
        return lost(trial, *_outcome(ended, child))
    try:
        return _believed(trial, sent, child, requested_at)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        child.keep(b"".join(map(bytes, sent)))
        return lost(trial, "failed", f"bad result: {error}")


def _believed(trial: Trial, sent: list[Any], child: Child, requested_at: float) -> Record:
    """Return the one record that was sent. Raises ValueError if the trial cannot have produced it."""
    if child.damage or len(sent) > 1:
        raise ValueError(child.damage or f"it sent {len(sent)} records")
    record: Record = decode(sent[0], Record)
    if record.schema != SCHEMA:
        raise ValueError(f"it is of schema {record.schema}")
    if record.case != trial.case or record.round != trial.round:
        raise ValueError("it is of another case")
    record = msgspec.structs.replace(
        record, stage_seconds={"start": _start_seconds(child, requested_at), **record.stage_seconds}
    )
    for wrong in impossible(record, trial.passes):
        raise ValueError(wrong)
    return record


def _outcome(ended: Ended, child: Child) -> tuple[Outcome, str]:
    if ended.timed_out:
        return "timed_out", ended.describe()
    if not child.flooded and (ended.status is None or ended.status < 0):
        return "crashed", ended.describe()  # which also explains damaged messages
    if child.damage:
        return "failed", f"bad result: {child.damage}"
    return "failed", f"ended in {ended.stage} without a result (exit code {ended.status})"


def _start_seconds(child: Child, requested_at: float) -> float:
    at: Any = next((message.get("at") for message in child.messages if message.get("stage") == "start"), requested_at)
    if not isinstance(at, int | float):
        raise ValueError(f"it began at {at!r}")
    return at - requested_at


def lost(trial: Trial, outcome: Outcome, detail: str) -> Record:
    """Return a record without readings."""
    system = f"{os.uname().sysname} {os.uname().machine}"
    environment = Environment(gcprof=__version__, python=sys.version.split()[0], system=system)
    return Record(case=trial.case, round=trial.round, outcome=outcome, detail=detail, environment=environment)
