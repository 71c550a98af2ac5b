"""This machine, each trial run by a real transformers.Trainer. Never imports torch itself."""

from __future__ import annotations

from pathlib import Path

from profiler.engines.local import Local


def connect(stage_seconds: float = 600.0, logs: Path | None = None) -> Local:
    """This machine, one trial at a time, with transformers.Trainer as the training loop."""
    return Local(stage_seconds=stage_seconds, logs=logs, entry="profiler.integrations.trainers.trainer_trial:run_trial")
