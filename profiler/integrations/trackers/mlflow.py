"""Export a run to MLflow, in a local folder or where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from profiler.core.errors import UserError
from profiler.integrations.trackers import LoggedRow, Written, entries
from profiler.runs.store import Run

EXPERIMENT = "gcprof"  # unless MLFLOW_EXPERIMENT_NAME names another
ID = "gcprof.id"  # the tag by which a row is recognized in a later export
LONGEST = 500  # characters of a tag or parameter that every store accepts


def write(run: Run, folder: Path | None) -> Written:
    """Create a run of MLflow for each row that has none yet; nothing is sent anywhere unless the environment says so.

    Raises UserError if the store cannot be written.
    """
    place = os.environ.get("MLFLOW_TRACKING_URI") if folder is None else None
    if not place:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else newer versions accept only a database
        place = (folder or run.folder / "derived" / "mlflow").absolute().as_uri()
    rows = entries(run)
    try:
        client = MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        there = client.get_experiment_by_name(name)
        experiment: str = there.experiment_id if there else client.create_experiment(name)
        known = [
            client.search_runs([experiment], filter_string=f"tags.`{ID}` = '{entry.id}'", max_results=1)
            for entry in rows
        ]
        written = [entry for entry, found in zip(rows, known, strict=True) if not found]
        for entry in written:
            _log(client, experiment, entry)
    except (MlflowException, OSError, ImportError) as error:
        first = str(error).partition("\n")[0]
        hint = "name a folder with -o, or another store with MLFLOW_TRACKING_URI"
        raise UserError(f"MLflow cannot write to '{place}': {first}", hint=hint, exit_code=74) from error
    shown = ("mlflow", "ui", "--backend-store-uri", place)
    return Written(place=place, num_rows=len(written), num_known=len(rows) - len(written), next=shown)


def _log(client: MlflowClient, experiment: str, entry: LoggedRow) -> None:
    time = round(entry.started * 1000)
    tags = {name: value[:LONGEST] for name, value in entry.tags.items()} | {ID: entry.id}
    run_id = client.create_run(experiment, start_time=time, tags=tags, run_name=entry.name).info.run_id
    metrics = [Metric(name, value, time, 0) for name, value in entry.metrics.items()]
    metrics += [
        Metric(f"sample_{name}", value, time, step)
        for name, samples in entry.samples.items()
        for step, value in enumerate(samples)
    ]
    parameters = [Param(name, str(value)[:LONGEST]) for name, value in entry.parameters.items()]
    for start in range(0, max(len(metrics), 1), 1000):  # the most that a store accepts at once
        client.log_batch(run_id, metrics=metrics[start : start + 1000], params=parameters if start == 0 else [])
    client.set_terminated(run_id, end_time=time)
