"""A trial that leaves word of when it ran, and which device it was given to see."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from profiler.engines import worker

FOLDER = "GCPROF_TEST_LANES"


def run_trial(request: str, channel: int) -> None:
    """As the worker's, between two looks at the clock."""
    began = time.monotonic()
    worker.run_trial(request, channel)
    word = {"began": began, "ended": time.monotonic(), "seen": os.environ.get("CUDA_VISIBLE_DEVICES")}
    Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(word), encoding="utf-8")


def hang(request: str, channel: int) -> None:
    """Never comes back."""
    Path(os.environ[FOLDER], f"{os.getpid()}.json").touch()
    time.sleep(600)
