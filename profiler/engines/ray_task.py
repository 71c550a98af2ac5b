"""What a task does in Ray's worker on a node: a trial, or a question, by a fork server of its own.

The server stays with the worker, so that later tasks import torch no more. Knows nothing of Ray.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from profiler import __version__
from profiler.core.case import Trial, decode, encode
from profiler.core.errors import UserError
from profiler.engines.child_outcome import lost
from profiler.engines.local import Local
from profiler.runs import store

VISIBLE = "CUDA_VISIBLE_DEVICES"  # Ray sets it anew for each task

_servers: dict[tuple[Any, ...], Local] = {}  # one at most


def run_trial(request: bytes, **server: Any) -> tuple[bytes, bytes]:
    """The record of a trial as JSON, and what the trial printed, capped and without secrets."""
    trial: Trial = decode(request, Trial)
    try:
        engine = _local(**server)
        with tempfile.TemporaryDirectory(prefix="gcprof-") as folder:
            engine.logs = Path(folder)
            (record,) = engine.run([trial])
            log = engine.logs / f"{store.log_name(trial.case, trial.round)}.log"
            return encode(record), log.read_bytes() if log.exists() else b""
    except UserError as error:  # of the node, which tells nothing of the trial
        return encode(lost(trial, "crashed", f"on the node: {error.message}; {error.hint}")), b""


def ask(entry: str, text: str, failing: str, **server: Any) -> dict[str, Any]:
    """What a function tells of a text: {"told"}, or {"refused"}, a message, a hint and an exit code."""
    try:
        return {"told": _local(**server).ask(entry, text, failing=failing)}
    except UserError as error:
        return {"refused": (error.message, error.hint, error.exit_code)}


def _local(*, trial: str, stage_seconds: float, version: str) -> Local:
    """This worker's engine, which runs trials by the function `trial`.

    Another GPU than the last task's needs another server: its children have its environment. Raises UserError where
    the node has another gcprof, or no torch.
    """
    if version != __version__:
        hint = "the driver's should have come with the task: is another one imported when Python starts there?"
        raise UserError(f"gcprof {__version__} is there, and {version} was to be", hint=hint, exit_code=3)
    key = (os.environ.get(VISIBLE), trial, stage_seconds)
    if key not in _servers:
        while _servers:
            _servers.popitem()[1].__exit__()
        engine = Local(stage_seconds=stage_seconds, entry=trial).__enter__()
        if os.environ.get(VISIBLE):
            engine.survey()  # how much is free, so that a trial that is ended by force is waited for
        _servers[key] = engine
    return _servers[key]
