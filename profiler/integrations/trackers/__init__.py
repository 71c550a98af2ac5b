"""The table of experiment trackers, and what each logs of a run, row by row. They read stored runs and never measure.

A tracker is one file with `write(run, folder)`, which returns a Written, and one line here; it is imported when it is
asked for. `folder` is None if the user named none.
"""

from __future__ import annotations

import hashlib

import msgspec

from profiler.analysis.rows import Row, rows
from profiler.core.errors import UserError
from profiler.core.record import moment
from profiler.runs.store import Run

TRACKERS = {
    "tensorboard": "profiler.integrations.trackers.tensorboard:write",
    "wandb": "profiler.integrations.trackers.wandb:write",
    "mlflow": "profiler.integrations.trackers.mlflow:write",
}
READ = ("saved_bytes", "peak_bytes", "reserved_bytes")
DERIVED = ("static_bytes", "peak_ratio", "step_seconds", "step_spread", "time_ratio")  # times are medians
TIMES = ("forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds")


class LoggedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged of one row: bytes, seconds, and ratios to the same case without checkpointing."""

    id: str  # of this case in this run; equal in every export
    name: str  # the strategy
    started: float  # seconds since 1970
    parameters: dict[str, str | int | bool]  # the fields of the case
    tags: dict[str, str]  # outcome, gradients, where it ran
    metrics: dict[str, float]
    samples: dict[str, tuple[float, ...]]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracker wrote: where, how many rows, and the command that shows it."""

    place: str
    num_rows: int
    num_known: int = 0  # rows that were there already, and are left as they are
    next: tuple[str, ...] = ()


def entries(run: Run) -> list[LoggedRow]:
    """Return what is logged of each row, in order."""
    return [_entry(row, run) for row in rows(run.records)]


def _entry(row: Row, run: Run) -> LoggedRow:
    mark = "" if row.evidence == "measured" else f"{row.evidence}_"  # names of metrics say if they were not measured
    environment = row.environment
    started = moment(environment.started if environment else None) or moment(run.manifest.created)
    if started is None:
        raise UserError(f"'{run.manifest.created}' is not a valid time for a run to begin", exit_code=4)
    fields = {name: value for name, value in msgspec.structs.asdict(row.case).items() if value is not None}
    tags = {
        "gcprof.run": run.folder.name,
        "outcome": row.outcome,
        "detail": row.detail,
        "gradients": row.gradients,
        "kind": row.evidence,
        "device_name": environment.device_name if environment else None,
        "torch": environment.torch if environment else None,
        "gcprof": environment.gcprof if environment else None,
    }
    metrics = {name: getattr(row.readings, name) for name in READ} | {name: getattr(row, name) for name in DERIVED}
    return LoggedRow(
        id=hashlib.sha256(f"{run.folder.name}/{row.case.id}".encode()).hexdigest()[:16],
        name=str(row.case.label),
        started=started.timestamp(),
        parameters={name: value if isinstance(value, bool | int) else str(value) for name, value in fields.items()},
        tags={name: str(value) for name, value in tags.items() if value is not None},
        metrics={f"{mark}{name}": float(value) for name, value in metrics.items() if value is not None},
        samples={f"{mark}{name}": seconds for name in TIMES if (seconds := getattr(row.readings, name))},
    )
