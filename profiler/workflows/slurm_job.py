"""Runs one shard of a run on this machine, as a cluster's job: knows nothing of what queues the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from profiler.analysis.rows import latest
from profiler.core import safe_files
from profiler.core.case import decode, encode
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.engines.local import Local
from profiler.runs import run_diff, store
from profiler.runs.store import Manifest
from profiler.workflows import owed_trials

AGREED_BYTES = 1 << 20


def carry_out(folder: Path, *, agreed: Path, stage_seconds: float = 600.0, data_directory: str | None = None) -> int:
    """Run what a folder still owes on this machine's devices; return how many trials have a record then.

    The first job of a run writes its device to the folder `agreed`, for all others to have the same. Raises UserError
    if this machine has another one, or other files or versions.
    """
    run = store.load(folder)
    with Local(stage_seconds=stage_seconds) as engine:
        _refuse_other(run.manifest, engine.survey(), agreed)
        owed = owed_trials.run_owed(engine, run, data_directory=data_directory)
        records = [*run.records, *(record for record, _ in owed)]
    return len(latest(records))


def _refuse_other(manifest: Manifest, devices: Mapping[str, Environment], agreed: Path) -> None:
    cases = [trial.case for trial in manifest.plan]
    for device in dict.fromkeys(case.device for case in cases if not case.is_predicted):
        if device not in devices:
            raise UserError(f"this node has no '{device}': torch sees {', '.join(devices)}")
        first = msgspec.structs.replace(manifest, environment=_agreed(agreed, device, devices[device]))
        changes = run_diff.changes(first, environment=devices[device], sources=run_diff.code_digests(cases))
        if changes:
            hint = "ask for one kind of node, as constraint=NAME does"
            raise UserError(f"this node is not as the first of the run: {'; '.join(changes)}", hint=hint)


def _agreed(folder: Path, device: str, mine: Environment) -> Environment:
    """Return the environment that the first job, perhaps this one, has written for the device."""
    path = folder / f"{device.replace(':', '-')}.json"
    new = safe_files.beside(path)
    try:
        new.write_bytes(encode(mine))
        os.link(new, path)  # atomic, and by one job alone
    except FileExistsError:
        with safe_files.opened(path, most_bytes=AGREED_BYTES) as file:
            first: Environment = decode(file.read(), Environment)
        return first
    finally:
        new.unlink(missing_ok=True)
    return mine
