"""The table of experiment trackers, readable without importing one. They read stored runs and never measure.

A tracker is one file with `write(run, folder)`, which gives a Written, and one line here. `folder` is None where the
user named none.
"""

from __future__ import annotations

from typing import Any

from profiler import extras

TRACKERS = {
    "tensorboard": "profiler.trackers.tensorboard:write",
    "wandb": "profiler.trackers.wandb:write",
    "mlflow": "profiler.trackers.mlflow:write",
}


def load(target: str) -> Any:
    """The function that a line of TRACKERS names, imported only now. Raises UserError where its library is missing."""
    module, _, attribute = target.partition(":")
    return getattr(extras.load(module), attribute)
