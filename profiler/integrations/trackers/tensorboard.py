"""Export a run as TensorBoard event files, with a table of hyperparameters.

Written record by record, since TensorBoard's own writer puts the host's name into file names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.record_writer import RecordWriter

from profiler.core.errors import UserError
from profiler.integrations.trackers import LoggedRow, Written, entries
from profiler.runs.store import Run

FILE = "events.out.tfevents.0.gcprof"  # TensorBoard looks for `tfevents` in the name


def write(run: Run, folder: Path | None) -> Written:
    """Write event files below a folder, by default in the run's `derived/`.

    Raises UserError if the folder exists, OSError if it cannot be written.
    """
    folder = folder or run.folder / "derived" / "tensorboard"
    if os.path.lexists(folder):
        raise UserError(f"'{folder}' is there already", hint="name another folder with -o, or remove it first")
    rows = entries(run)
    parameters = dict.fromkeys(name for entry in rows for name in (*entry.parameters, *entry.tags))
    metrics = dict.fromkeys(name for entry in rows for name in entry.metrics)
    columns = hparams.hparams_config_pb(
        hparams=[hparams.HParam(name) for name in parameters], metrics=[hparams.Metric(name) for name in metrics]
    )
    _write(folder, [Event(summary=columns)])  # those of the table of hyperparameters
    for entry in rows:
        slug = re.sub(r"[^A-Za-z0-9=.-]+", "-", entry.name).strip("-.")[:60] or "row"
        _write(folder / f"{slug}-{entry.id}", _events(entry))
    return Written(place=str(folder), num_rows=len(rows), next=("tensorboard", "--logdir", str(folder)))


def _events(entry: LoggedRow) -> Iterable[Event]:
    values = {**entry.parameters, **entry.tags}
    yield Event(summary=hparams.hparams_pb(values, trial_id=entry.id, start_time_secs=entry.started))
    for name, value in entry.metrics.items():
        yield _scalar(name, value, step=0, time=entry.started)
    for name, samples in entry.samples.items():
        for step, value in enumerate(samples):
            yield _scalar(f"samples/{name}", value, step=step, time=entry.started)


def _scalar(name: str, value: float, *, step: int, time: float) -> Event:
    return Event(wall_time=time, step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))


def _write(folder: Path, events: Iterable[Event]) -> None:
    folder.mkdir(parents=True)
    with (folder / FILE).open("wb") as file:
        writer = RecordWriter(file)
        for event in (Event(file_version="brain.Event:2"), *events):
            writer.write(event.SerializeToString())
        writer.flush()
