"""A trial that leaves word of when it ran, and which device it was given to see."""

import json
import os
import time
from pathlib import Path

from profiler.engines import worker

FOLDER = "GCPROF_TEST_LANES"
PATIENCE_SECONDS = 20.0  # a device alone goes on by itself


def run_trials(request: str, channel: int) -> None:
    """As the worker's, between two looks at the clock; the first of a device waits for one on another."""
    began, seen = time.monotonic(), os.environ.get("CUDA_VISIBLE_DEVICES")
    Path(os.environ[FOLDER], f"{seen}.began").touch()
    while len(list(Path(os.environ[FOLDER]).glob("*.began"))) == 1 and time.monotonic() < began + PATIENCE_SECONDS:
        time.sleep(0.01)
    worker.run_trials(request, channel)
    word = {"began": began, "ended": time.monotonic(), "seen": seen}
    Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(word), encoding="utf-8")
