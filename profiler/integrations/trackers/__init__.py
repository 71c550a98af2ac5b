"""The table of experiment trackers; reading it imports none. They read stored runs and never measure.

A tracker is one file with `write(run, folder)`, which returns a Written, and one line here. `folder` is None if the
user named none.
"""

from __future__ import annotations

TRACKERS = {
    "tensorboard": "profiler.integrations.trackers.tensorboard:write",
    "wandb": "profiler.integrations.trackers.wandb:write",
    "mlflow": "profiler.integrations.trackers.mlflow:write",
}
