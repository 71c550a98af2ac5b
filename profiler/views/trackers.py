"""The table of experiment trackers, and what each logs of a run, row by row. They read stored runs and never measure.

A tracker is a function `write(run, folder)`, which returns a Written, and one line here; it imports its library when it
is asked for. `folder` is None if the user named none.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from profiler.analysis.rows import flat_row, rows
from profiler.core.errors import UserError, load_module
from profiler.core.record import moment
from profiler.runs.store import Run

TRACKERS = {
    "tensorboard": "profiler.views.trackers:write_tensorboard",
    "wandb": "profiler.views.trackers:write_wandb",
    "mlflow": "profiler.views.trackers:write_mlflow",
}
METRICS = (  # times are medians
    "saved_bytes", "peak_bytes", "reserved_bytes", "static_bytes", "peak_ratio", "step_seconds", "step_spread",
    "time_ratio",
)  # fmt: skip
TAGS = ("outcome", "detail", "gradients", "device_name", "torch", "gcprof")
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
    logged = []
    for row in rows(run.records):
        mark = "" if row.evidence == "measured" else f"{row.evidence}_"  # names of metrics say what was not measured
        line = flat_row(row)
        started = moment(line["started"]) or moment(run.manifest.created)
        if started is None:
            raise UserError(f"'{run.manifest.created}' is not a valid time for a run to begin", exit_code=4)
        fields = {name: value for name, value in msgspec.structs.asdict(row.case).items() if value is not None}
        tags = {"gcprof.run": run.folder.name, "kind": row.evidence} | {name: line[name] for name in TAGS}
        entry = LoggedRow(
            id=hashlib.sha256(f"{run.folder.name}/{row.case.id}".encode()).hexdigest()[:16],
            name=str(row.case.label),
            started=started.timestamp(),
            parameters={name: value if isinstance(value, bool | int) else str(value) for name, value in fields.items()},
            tags={name: str(value) for name, value in tags.items() if value is not None},
            metrics={f"{mark}{name}": float(line[name]) for name in METRICS if line[name] is not None},
            samples={f"{mark}{name}": samples for name in TIMES if (samples := line[f"{name}_samples"])},
        )
        logged.append(entry)
    return logged


# ---- TensorBoard: event files

FILE = "events.out.tfevents.0.gcprof"  # TensorBoard looks for `tfevents` in the name


def write_tensorboard(run: Run, folder: Path | None) -> Written:
    """Write event files below a folder, by default in the run's `derived/`.

    Raises UserError if the folder exists, OSError if it cannot be written.
    """
    event = load_module("tensorboard.compat.proto.event_pb2").Event
    summary = load_module("tensorboard.compat.proto.summary_pb2").Summary
    hparams = load_module("tensorboard.plugins.hparams.summary_v2")
    writer = load_module("tensorboard.summary.writer.record_writer").RecordWriter
    folder = folder or run.folder / "derived" / "tensorboard"
    if os.path.lexists(folder):
        raise UserError(f"'{folder}' is there already", hint="name another folder with -o, or remove it first")
    logged = entries(run)
    parameters = dict.fromkeys(name for entry in logged for name in (*entry.parameters, *entry.tags))
    metrics = dict.fromkeys(name for entry in logged for name in entry.metrics)
    columns = hparams.hparams_config_pb(
        hparams=[hparams.HParam(name) for name in parameters], metrics=[hparams.Metric(name) for name in metrics]
    )

    def scalar(name: str, value: float, *, step: int, time: float) -> Any:
        return event(wall_time=time, step=step, summary=summary(value=[summary.Value(tag=name, simple_value=value)]))

    def events(entry: LoggedRow) -> Iterable[Any]:
        values = {**entry.parameters, **entry.tags}
        yield event(summary=hparams.hparams_pb(values, trial_id=entry.id, start_time_secs=entry.started))
        for name, value in entry.metrics.items():
            yield scalar(name, value, step=0, time=entry.started)
        for name, samples in entry.samples.items():
            for step, value in enumerate(samples):
                yield scalar(f"samples/{name}", value, step=step, time=entry.started)

    def keep(place: Path, events: Iterable[Any]) -> None:
        place.mkdir(parents=True)
        with (place / FILE).open("wb") as file:
            written = writer(file)
            for one in (event(file_version="brain.Event:2"), *events):
                written.write(one.SerializeToString())
            written.flush()

    keep(folder, [event(summary=columns)])  # those of the table of hyperparameters
    for entry in logged:
        slug = re.sub(r"[^A-Za-z0-9=.-]+", "-", entry.name).strip("-.")[:60] or "row"
        keep(folder / f"{slug}-{entry.id}", events(entry))
    return Written(place=str(folder), num_rows=len(logged), next=("tensorboard", "--logdir", str(folder)))


# ---- Weights & Biases

PROJECT = "gcprof"  # unless WANDB_PROJECT names another


def write_wandb(run: Run, folder: Path | None) -> Written:
    """Create a run of W&B for each row. Without WANDB_MODE it is offline: no account, no prompt, nothing is sent.

    Raises UserError if W&B cannot write, or if WANDB_MODE is online without a key.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read on import; offline, nothing is sent at all
    wandb = load_module("wandb")
    mode = os.environ.get("WANDB_MODE") or "offline"
    place = str(folder) if folder else os.environ.get("WANDB_DIR") or str(run.folder / "derived")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        raise UserError("WANDB_MODE is online, and WANDB_API_KEY holds no key", hint="leave out WANDB_MODE")
    logged = entries(run)
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        for entry in logged:
            session = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT, group=run.folder.name, name=entry.name, id=entry.id,
                mode=mode, dir=place, config={**entry.parameters, **entry.tags},
                # nothing of this machine, code or user is logged: the run may have been measured elsewhere
                settings=wandb.Settings(
                    console="off", silent=True, host="", disable_git=True, disable_code=True, save_code=False,
                    x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
                ),
            )  # fmt: skip
            for values in zip_longest(*entry.samples.values()):
                known = zip(entry.samples, values, strict=True)
                session.log({f"sample/{name}": value for name, value in known if value is not None})
            session.summary.update(entry.metrics)
            session.finish()
    except (wandb.Error, OSError) as error:
        hint = "WANDB_MODE=offline sends nothing; -o names another folder"
        raise UserError(f"W&B cannot write to '{place}': {error}", hint=hint, exit_code=74) from error
    shown = ("wandb", "sync", "--sync-all", str(Path(place) / "wandb")) if mode == "offline" else ()
    return Written(place=str(Path(place) / "wandb"), num_rows=len(logged), next=shown)


# ---- MLflow

EXPERIMENT = "gcprof"  # unless MLFLOW_EXPERIMENT_NAME names another
ID = "gcprof.id"  # the tag by which a row is recognized in a later export
LONGEST = 500  # characters of a tag or parameter that every store accepts


def write_mlflow(run: Run, folder: Path | None) -> Written:
    """Create a run of MLflow for each row that has none yet; nothing is sent anywhere unless the environment says so.

    Raises UserError if the store cannot be written.
    """
    known_errors = (load_module("mlflow.exceptions").MlflowException, OSError, ImportError)
    entities, tracking = load_module("mlflow.entities"), load_module("mlflow.tracking")
    place = os.environ.get("MLFLOW_TRACKING_URI") if folder is None else None
    if not place:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else newer versions accept only a database
        place = (folder or run.folder / "derived" / "mlflow").absolute().as_uri()
    logged = entries(run)
    try:
        client = tracking.MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        there = client.get_experiment_by_name(name)
        experiment: str = there.experiment_id if there else client.create_experiment(name)
        wanted = [(entry, f"tags.`{ID}` = '{entry.id}'") for entry in logged]
        written = [entry for entry, tag in wanted if not client.search_runs([experiment], tag, max_results=1)]
        for entry in written:
            time, tags = round(entry.started * 1000), {name: value[:LONGEST] for name, value in entry.tags.items()}
            made = client.create_run(experiment, start_time=time, tags={**tags, ID: entry.id}, run_name=entry.name)
            metrics = [entities.Metric(name, value, time, 0) for name, value in entry.metrics.items()]
            metrics += [
                entities.Metric(f"sample_{name}", value, time, step)
                for name, samples in entry.samples.items()
                for step, value in enumerate(samples)
            ]
            parameters = [entities.Param(name, str(value)[:LONGEST]) for name, value in entry.parameters.items()]
            for start in range(0, max(len(metrics), 1), 1000):  # the most that a store accepts at once
                some = metrics[start : start + 1000]
                client.log_batch(made.info.run_id, metrics=some, params=parameters if start == 0 else [])
            client.set_terminated(made.info.run_id, end_time=time)
    except known_errors as error:
        first = str(error).partition("\n")[0]
        hint = "name a folder with -o, or another store with MLFLOW_TRACKING_URI"
        raise UserError(f"MLflow cannot write to '{place}': {first}", hint=hint, exit_code=74) from error
    shown = ("mlflow", "ui", "--backend-store-uri", place)
    return Written(place=place, num_rows=len(written), num_known=len(logged) - len(written), next=shown)
