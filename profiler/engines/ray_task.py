"""What a task does in Ray's worker on a node: runs a trial, or answers a question, by the worker's own fork server.

The server lives as long as the worker, so that later tasks need not import torch again. Knows nothing of Ray.
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

_servers: dict[tuple[Any, ...], Local] = {}  # at most one


def run_trial(request: bytes, **server: Any) -> tuple[bytes, bytes]:
    """Run a trial; return its record as JSON, and what it printed, capped and without secrets."""
    trial: Trial = decode(request, Trial)
    try:
        engine = _local(**server)
        with tempfile.TemporaryDirectory(prefix="gcprof-") as folder:
            engine.logs = Path(folder)
            (record,) = engine.run([trial])
            log = engine.logs / f"{store.log_name(trial.case, trial.round)}.log"
            return encode(record), log.read_bytes() if log.exists() else b""
    except UserError as error:  # a fault of the node, not of the trial
        return encode(lost(trial, "crashed", f"on the node: {error.message}; {error.hint}")), b""


def ask(entry: str, text: str, failing: str, **server: Any) -> dict[str, Any]:
    """Call a function with a text; return its answer as {"told"}, or {"refused"}: a message, a hint, an exit code."""
    try:
        return {"told": _local(**server).ask(entry, text, failing=failing)}
    except UserError as error:
        return {"refused": (error.message, error.hint, error.exit_code)}


def _local(*, trial: str, stage_seconds: float, version: str) -> Local:
    """Return this worker's engine, which runs trials by the function `trial`.

    A task with another GPU than the last one needs another server, since children inherit the server's environment.
    Raises UserError if the node has another version of gcprof, or no torch.
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
            engine.survey()  # reads the free bytes, so that a killed trial's memory can be waited for
        _servers[key] = engine
    return _servers[key]
