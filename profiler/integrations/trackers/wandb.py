"""Export a run to Weights & Biases, offline unless the environment says otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb reads it on import; offline, nothing is sent at all

import wandb

from profiler.core.errors import UserError
from profiler.integrations.trackers import LoggedRow, Written, entries
from profiler.runs.store import Run

PROJECT = "gcprof"  # unless WANDB_PROJECT names another


def write(run: Run, folder: Path | None) -> Written:
    """Create a run of W&B for each row. Without WANDB_MODE it is offline: no account, no prompt, nothing is sent.

    Raises UserError if W&B cannot write, or if WANDB_MODE is online without a key.
    """
    mode = os.environ.get("WANDB_MODE") or "offline"
    place = str(folder) if folder else os.environ.get("WANDB_DIR") or str(run.folder / "derived")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        raise UserError("WANDB_MODE is online, and WANDB_API_KEY holds no key", hint="leave out WANDB_MODE")
    rows = entries(run)
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        for entry in rows:
            _log(entry, mode=mode, place=place, group=run.folder.name)
    except (wandb.Error, OSError) as error:
        hint = "WANDB_MODE=offline sends nothing; -o names another folder"
        raise UserError(f"W&B cannot write to '{place}': {error}", hint=hint, exit_code=74) from error
    shown = ("wandb", "sync", "--sync-all", str(Path(place) / "wandb")) if mode == "offline" else ()
    return Written(place=str(Path(place) / "wandb"), num_rows=len(rows), next=shown)


def _log(entry: LoggedRow, *, mode: Any, place: str, group: str) -> None:
    session = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT, group=group, name=entry.name, id=entry.id, mode=mode,
        dir=place, config={**entry.parameters, **entry.tags},
        # nothing of this machine, code or user is logged: the run may have been measured elsewhere
        settings=wandb.Settings(
            console="off", silent=True, host="", disable_git=True, disable_code=True, save_code=False,
            x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
        ),
    )  # fmt: skip
    for step in range(max((len(samples) for samples in entry.samples.values()), default=0)):
        session.log({f"sample/{name}": samples[step] for name, samples in entry.samples.items() if step < len(samples)})
    session.summary.update(entry.metrics)
    session.finish()
